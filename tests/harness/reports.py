"""Reads what test programs wrote: TAP of cmocka, JUnit's XML of pytest and node."""

import re
import xml.etree.ElementTree as xml


def read_tap(part, module, record):
    """Counts the TAP that cmocka wrote; one process can hold several groups. A test's own comments come
    before its line, such as the reason of a skip; cmocka explains a failure in those that follow."""
    planned = seen = 0
    comments = []
    broken = []  # (test, the comments that follow)
    for line in record.get("stdout", "").splitlines():
        plan = re.match(r"1\.\.(\d+)", line)
        result = re.match(r"(not )?ok \d+(?: - | )(# SKIP )?(.*)", line)
        if plan:
            planned += int(plan[1])
        elif result:
            seen += 1
            test = f"{module}: {result[3].removeprefix('test_').replace('_', ' ')}"
            reasons = [c[6:].strip() for c in comments if c.startswith("skip:")]
            comments = []
            if result[2]:
                part.skip(test, reasons[-1] if reasons else "the test does not say why")
            elif result[1]:
                broken.append((test, comments))
            else:
                part.ok(test)
        elif line.startswith("# "):
            comments.append(line[2:])

    errors = record.get("stderr", "")
    for test, why in broken:
        part.fail(test, "\n".join([*why, errors]) if len(broken) == 1 else "\n".join(why))
    if planned != seen or (record["result"] != "OK" and not broken):
        notes = [l for l in record.get("stdout", "").splitlines() if not re.match(r"ok \d", l)]
        part.fail(f"{module}: ran {seen} of {planned} tests, {record['result']}",
                  "\n".join([*notes, errors]))
    elif not seen:
        part.fail(f"{module}: ran no test")


def read_junit(part, report, prefix=""):
    """Counts what pytest or node wrote; gives how many tests there were."""
    seen = 0
    for suite in xml.parse(report).iter():
        for case in suite.findall("testcase"):
            seen += 1
            # pytest names the module in the class; node says "test" there, and what describes the
            # test is the suite around it.
            group = case.get("classname", "").split(".")[-1]
            if group in ("", "test"):
                group = suite.get("name", "")
            test = f"{prefix}{group + ': ' if group else ''}{case.get('name')}"
            skipped = case.find("skipped")
            broken = case.find("failure")
            if broken is None:
                broken = case.find("error")
            if broken is not None:
                part.fail(test, broken.text or broken.get("message", ""))
            elif skipped is not None:
                part.skip(test, skipped.get("message", "the test does not say why"))
            else:
                part.ok(test)
    return seen


def read_junits(part, reports):
    """Several reports, {prefix: path}; one that is missing or empty is a failure."""
    for name, path in reports.items():
        try:
            seen = read_junit(part, path, f"{name}: ")
        except (OSError, xml.ParseError) as error:
            part.fail(f"{name}: no report", f"{error}; see {path.removesuffix('.xml')}.log")
        else:
            if not seen:
                part.fail(f"{name}: ran no test", f"see {path.removesuffix('.xml')}.log")


def read_pytest(part, report, result):
    """What pytest wrote and how it ended; gives the names of the tests that failed."""
    before = len(part.failed)
    try:
        read_junit(part, report)
    except (OSError, xml.ParseError):
        part.fail("pytest", result.tail())
        return []
    names = [test for test, _ in part.failed[before:]]
    # 0: all passed, 1: some failed. Anything else, such as 5 for no test at all, is a fault.
    if result.status not in (0, 1) or (result.status == 1 and not names):
        part.fail("pytest", result.tail())
    return names
