"""Tests that failed beside all others are tried once more, alone, when everything else is done.

A run of thousands of tests on two processors meets now and then a test that waits too little. Such a run
still says something of the change that it is for, so a few failures that do not come again are no failure
of the run. They are told as `unsteady`, with their text, and each is a fault to be found: in the test or in
the product. There is no second try for attacks, for kills and losses, for what the memory checkers say, nor by
night, nor with PADDOCK_STRICT=1, nor when many tests have failed.
"""

import contextlib
import os

from .reports import read_junits, read_pytest
from .work import LOGS, Part

ONCE = {"security", "faults", "alone"}  # one attack that succeeds, one byte that is lost, is one too many
MOST = 3  # failures of a whole run that are tried again


class Attempt:
    """A run of pytest, with what is needed to repeat those of its tests that failed."""

    def __init__(self, log, command, limit, env, failed):
        self.log = log
        self.command = command
        self.limit = limit
        self.env = env
        self.failed = failed

    def repeat(self, shop):
        """A part with the results of the second try."""
        part = Part(f"{self.log}-again")
        report = os.path.join(LOGS, f"{part.name}.xml")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(report)
        result = shop.run(part, part.name, [*self.command, f"--junitxml={report}", "--last-failed",
                                            "--last-failed-no-failures=none"], self.limit, self.env)
        read_pytest(part, report, result)
        return part


class SuiteAttempt:
    """A run of tests/PART/suite, which writes a report of each of its names. Those names are repeated in which
    a test has failed, whole: what a browser or an SDK does has no part that could be tried for itself."""

    def __init__(self, name, names, limit, env, failed):
        self.name = name
        self.names = names
        self.limit = limit
        self.env = env
        self.failed = failed

    def repeat(self, shop):
        """A part with the results of the second try."""
        part = Part(f"{self.name}-again")
        names = [name for name in self.names if any(test.startswith(f"{name}: ") for test in self.failed)]
        run_suite(shop, part, self.name, names, self.limit, self.env)
        return part


def run_suite(shop, part, name, names, limit, env):
    """Runs tests/NAME/suite for some of its names and counts; gives the names of the tests that failed."""
    folder = os.path.join(LOGS, part.name)
    result = shop.run(part, part.name, [os.path.join("tests", name, "suite"), folder, *names], limit, env)
    before = len(part.failed)
    read_junits(part, {n: os.path.join(folder, f"{name}-{n}.xml") for n in names})
    failed = [test for test, _ in part.failed[before:]]
    if result.status and not failed:
        part.fail("suite", result.tail())
    return failed


def settle(part, attempt, second):
    """Moves what failed and now passed from the failures to what is unsteady. A test counts as passed only
    by its own line in the second report."""
    passed = {line.removeprefix("ok    ") for line in second.results if line.startswith("ok    ")}
    steady = passed.isdisjoint(test for test, _ in second.failed)
    for test, text in list(part.failed):
        if steady and test in attempt.failed and test in passed:
            part.failed.remove((test, text))
            part.passed += 1
            part.unsteady.append((test, text))


def try_again(shop, done):
    """Repeats what may be repeated of the parts."""
    if not 0 < sum(len(part.failed) for part in done) <= MOST:
        return
    for part in done:
        for attempt in part.again:
            if attempt.failed and part.name not in ONCE:
                settle(part, attempt, attempt.repeat(shop))
