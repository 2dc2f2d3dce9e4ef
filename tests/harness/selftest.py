"""tests/run --self-test: each rule by which tests/run finds a fault is shown one."""

import os
import tempfile
import time

from . import expected, install_cases, summary
from .again import MOST, Attempt, SuiteAttempt, run_suite, try_again
from .parts import pytest_command
from .reports import read_junits, read_pytest, read_tap
from .work import LOGS, PYTHON, TEXT_LINES, Part, Result, Workshop

PASSED = '<testsuites><testsuite name="s"><testcase classname="m" name="t"/></testsuite></testsuites>'
FAILED = PASSED.replace("/></testsuite>", "><failure>no</failure></testcase></testsuite>")
EMPTY = '<testsuites><testsuite name="s"/></testsuites>'


def failures(read, *arguments):
    part = Part("p")
    read(part, *arguments)
    return len(part.failed)


def pytest_cases(folder):
    """(what, failures that must be found, found)"""
    report = os.path.join(folder, "report.xml")
    for what, text, status, want in (
        ("pytest that passed", PASSED, 0, 0),
        ("pytest that failed", FAILED, 1, 1),
        ("pytest that found no test", EMPTY, 5, 1),
        ("pytest that was interrupted", PASSED, 2, 1),
        ("pytest that failed without a failure", PASSED, 1, 1),
        ("a broken report", "<testsuites>", 0, 1),
    ):
        with open(report, "w", encoding="utf-8") as f:
            f.write(text)
        yield what, want, failures(read_pytest, report, Result(status, ""))
    os.unlink(report)
    yield "no report", 1, failures(read_pytest, report, Result(0, ""))
    yield "no report of several", 1, failures(read_junits, {"a": report})


def text_cases():
    tap = "1..2\nok 1 - test_a\nok 2 - test_b\n"
    for what, text, result, want in (
        ("TAP that passed", tap, "OK", 0),
        ("TAP that ended early", tap.replace("ok 2 - test_b\n", ""), "OK", 1),
        ("TAP with a failure", tap.replace("ok 2", "not ok 2"), "FAIL", 1),
        ("a program that died at its end", tap, "ERROR", 1),
        ("a program without tests", "1..0\n", "OK", 1),
    ):
        yield what, want, failures(read_tap, "m", {"stdout": text, "result": result})


def output_cases():
    """What a reader sees of a failure: its own text and no more, and its reason at the end."""
    part = Part("p")
    read_tap(part, "m", {"stdout": "1..3\nok 1 - test_a\nnot ok 2 - test_b\n# 1 != 2\n"
                         "not ok 3 - test_c\n# 3 != 4\n", "result": "FAIL"})
    yield "each failure in TAP has its text", [("m: b", ["1 != 2"]), ("m: c", ["3 != 4"])], part.failed
    yield "no test that passed is shown", False, any("test_a" in l or " ok " in l for l in part.lines)
    yield "but it is in the results", True, "ok    m: a" in part.results

    part = Part("p")
    part.fail("long", "tests/t.py:7: in test_t\n" + "x\n" * 200 + "E   assert 5 == 6\nlast")
    for _ in range(110):
        part.skip("s", "no such call")
    part.skip("u", "there is no /proc/a")
    part.skip("v", "there is no /proc/b")
    yield "a long text is cut", TEXT_LINES + 1, len(part.lines)
    yield "and keeps its ends", True, "t.py:7" in part.lines[1] and "last" in part.lines[-1]
    said = list(summary.lines([part], 1.0))
    yield "skips are grouped by their reason", 2, sum("no such call" in l or "is no ..." in l for l in said)
    yield "with their number", True, any(l.startswith("  110  p: no such call") for l in said)
    yield "the run ends with what failed, why, and the counts", [
        "failed:", "  p: long", "      tests/t.py:7: in test_t", "      assert 5 == 6", "",
        "0 passed, 1 failed, 112 skipped"], said[-6:]

    said = Result(1, "ok 1 a\nPASSED b\nskip c: no\n" + "y\n" * 200 + "not ok 2 d\n").tail().splitlines()
    yield "the end of an output", (TEXT_LINES, "not ok 2 d"), (len(said), said[-2])
    yield "has nothing that passed", False, any(l.startswith(("ok", "PASSED", "skip")) for l in said)


def command_cases():
    shop, part = Workshop(grace=1), Part("p")
    os.makedirs(LOGS, exist_ok=True)
    run = lambda line, limit: shop.run(part, "self-test", ["bash", "-c", line], limit).status
    yield "a command that passed", 0, run("exit 0", 20)
    yield "a command that failed", 3, run("exit 3", 20)
    yield "a command that takes too long", True, run("sleep 60", 0.2) != 0
    # It leaves its process group, as a server does, and must not outlive the run.
    run("setsid sleep 600 & disown; exit 0", 20)
    deadline = time.monotonic() + 20
    while not (before := len(shop.alive())) and time.monotonic() < deadline:
        time.sleep(0.01)  # a process that becomes another one has no variables for a moment
    shop.stop()
    yield "a process that outlives its command is found", 1, before
    yield "and ended with the run", 0, len(shop.alive())


class Recorder(Workshop):
    """Runs nothing and keeps what it was asked to build."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def run(self, part, log, command, limit, env=None):
        self.asked.append(command[4:])
        return Result(0, "")


def build_cases():
    shop, part = Recorder(), Part("p")
    for targets in (["paddockd"], [], ["paddockd"], []):
        shop.build(part, "asan", *targets)
    yield "one target is not the whole directory", [["asan", "paddockd"], ["asan"]], shop.asked


HANGS = """
import time
def waits_for_nothing():
    time.sleep(600)
def test_hangs():
    waits_for_nothing()
def test_after_it():
    pass
"""


def hang_cases(folder):
    """A test that hangs fails, with its stack, and the next one runs."""
    test, report = os.path.join(folder, "test_hang.py"), os.path.join(folder, "hang.xml")
    with open(test, "w", encoding="utf-8") as f:
        f.write(HANGS)
    part = Part("p")
    result = Workshop(grace=1).run(part, "self-test", [
        *pytest_command(PYTHON, report, "--rootdir", folder, "--noconftest", limit=3), test], 200)
    read_pytest(part, report, result)
    yield "a test that hangs, and the one after it", (1, 1), (part.passed, len(part.failed))
    text = "\n".join(line for _, lines in part.failed for line in lines)
    yield "it is named", ["test_hang: test_hangs"], [name for name, _ in part.failed]
    yield "with its stack", True, "in waits_for_nothing" in text and "Timeout" in text


UNSTEADY = """
import os
def test_once():
    if not os.path.exists(__file__ + ".seen"):
        open(__file__ + ".seen", "w").close()
        assert False, "the first time"
def test_always():
    assert not os.path.exists(__file__ + ".always")
"""


def unsteady_run(folder, name, always=False, more=0):
    """A part whose one test fails the first time, and another always, tried again."""
    test, report = os.path.join(folder, f"test_{name}.py"), os.path.join(folder, f"{name}.xml")
    with open(test, "w", encoding="utf-8") as f:
        f.write(UNSTEADY)
    if always:
        open(f"{test}.always", "w", encoding="utf-8").close()
    shop, part = Workshop(grace=1), Part(name)
    command = [*pytest_command(PYTHON, report, "--rootdir", folder, "--noconftest"), test]
    failed = read_pytest(part, report, shop.run(part, "self-test", command, 200))
    part.again.append(Attempt(name, command, 200, None, failed))
    for number in range(more):
        part.fail(f"another {number}")
    try_again(shop, [part])
    return part.passed, len(part.failed), [test for test, _ in part.unsteady]


class Programs(Workshop):
    """A suite of two names, of which `b` fails as often as it is told to."""

    def __init__(self, failures):
        super().__init__()
        self.failures = failures
        self.asked = []

    def run(self, part, log, command, limit, env=None):
        _, folder, *names = command
        self.asked.append(names)
        os.makedirs(folder, exist_ok=True)
        broken = "b" in names and self.failures > 0
        self.failures -= 1
        for name in names:
            with open(os.path.join(folder, f"self-test-suite-{name}.xml"), "w", encoding="utf-8") as report:
                report.write(FAILED if broken and name == "b" else PASSED)
        return Result(int(broken), "")


def suite_run(failures):
    shop, part = Programs(failures), Part("self-test-suite")
    failed = run_suite(shop, part, part.name, ["a", "b"], 20, None)
    part.again.append(SuiteAttempt(part.name, ["a", "b"], 20, None, failed))
    try_again(shop, [part])
    return part.passed, len(part.failed), shop.asked


def again_cases(folder):
    """What is tried again, and what is not."""
    yield "a failure that does not come again", (2, 0, ["test_a: test_once"]), unsteady_run(folder, "a")
    yield "one beside it that does", (1, 1, ["test_b: test_once"]), unsteady_run(folder, "b", always=True)
    yield "too many failures", (1, MOST + 1, []), unsteady_run(folder, "c", more=MOST)
    yield "a suite that passed", (2, 0, [["a", "b"]]), suite_run(0)
    yield "a suite of which one name failed once", (2, 0, [["a", "b"], ["b"]]), suite_run(1)
    yield "and one that fails again", (1, 1, [["a", "b"], ["b"]]), suite_run(2)
    yield "an attack that succeeded once", (1, 1, []), unsteady_run(folder, "security")


def main():
    faults = list(expected.self_test(Part))
    with tempfile.TemporaryDirectory() as folder:
        for what, want, found in [*pytest_cases(folder), *text_cases(), *output_cases(),
                                  *command_cases(), *build_cases(), *hang_cases(folder), *again_cases(folder),
                                  *install_cases.cases(folder)]:
            if want != found:
                faults.append(f"{what}: {found}, not {want}")
    for fault in faults:
        print(f"self-test: {fault}")
    return 1 if faults else 0
