"""tests/run --self-test: each rule by which tests/run finds a fault is shown one."""

import os
import tempfile

from . import expected
from .reports import read_counts, read_junits, read_pytest, read_tap
from .work import LOGS, Part, Result, Workshop

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
    for what, text, status, want in (
        ("a suite that passed", "3 passed, 0 failed, 0 skipped\n", 0, 0),
        ("a suite with failures", "3 passed, 2 failed, 0 skipped\n", 1, 2),
        ("a suite without counts", "all is well\n", 0, 1),
        ("a suite that failed at its end", "3 passed, 0 failed, 0 skipped\n", 1, 1),
    ):
        yield what, want, failures(read_counts, Result(status, text))


def command_cases():
    shop, part = Workshop(grace=1), Part("p")
    os.makedirs(LOGS, exist_ok=True)
    run = lambda line, limit: shop.run(part, "self-test", ["bash", "-c", line], limit).status
    yield "a command that passed", 0, run("exit 0", 20)
    yield "a command that failed", 3, run("exit 3", 20)
    yield "a command that takes too long", True, run("sleep 60", 0.2) != 0
    # It leaves its process group, as a server does, and must not outlive the run.
    run("setsid sleep 600 & disown; exit 0", 20)
    before = len(shop.alive())
    shop.stop()
    yield "a process that outlives its command is found", 1, before
    yield "and ended with the run", 0, len(shop.alive())


def main():
    faults = list(expected.self_test(Part))
    with tempfile.TemporaryDirectory() as folder:
        for what, want, found in [*pytest_cases(folder), *text_cases(), *command_cases()]:
            if want != found:
                faults.append(f"{what}: {found}, not {want}")
    for fault in faults:
        print(f"self-test: {fault}")
    return 1 if faults else 0
