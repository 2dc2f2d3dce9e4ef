"""How many tests each part must have passed, and which may be skipped: tests/expected.toml.

A run of all parts is held to it. So a file of tests that is no longer collected, a fixture that skips
what it should start, and a script that says it cannot run are failures, not silence.
"""

import os
import re
import subprocess
import tomllib

from .work import ROOT

TABLE = os.path.join(ROOT, "tests/expected.toml")
ROW_KEYS = {"part", "test", "reason", "where", "because", "whole"}


class Wrong(Exception):
    """The table itself cannot be used."""


class Row:
    """One skip that is allowed. `where` is a shell condition that holds on machines which cannot run
    the test; without it the skip is allowed everywhere. `whole` excuses all of the part."""

    def __init__(self, fields):
        if set(fields) - ROW_KEYS or not {"part", "test", "reason", "because"} <= set(fields):
            raise Wrong(f"a row has the keys {sorted(fields)}; part, test, reason and because are "
                        "needed, where and whole may be there")
        self.part = re.compile(fields["part"])
        self.test = re.compile(fields["test"], re.DOTALL)
        self.reason = re.compile(fields["reason"], re.DOTALL)
        self.where = fields.get("where")
        self.whole = fields.get("whole", False)
        self.holds = None

    def allows(self, part, test, reason):
        if not (self.part.fullmatch(part) and self.test.fullmatch(test)
                and self.reason.fullmatch(reason)):
            return False
        if self.holds is None:
            self.holds = self.where is None or subprocess.run(
                ["bash", "-c", self.where], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                timeout=60).returncode == 0
        return self.holds


class Table:
    def __init__(self, data, nightly=False):
        if set(data) - {"least", "nightly", "skip"}:
            raise Wrong(f"unknown tables: {sorted(set(data) - {'least', 'nightly', 'skip'})}")
        self.least = {**data.get("least", {}), **(data.get("nightly", {}) if nightly else {})}
        self.rows = [Row(fields) for fields in data.get("skip", [])]

    @classmethod
    def read(cls, nightly):
        with open(TABLE, "rb") as f:
            return cls(tomllib.load(f), nightly)

    def check(self, done, names):
        """Adds a failure to each part that is not as the table says. `names` are all there are."""
        by_name = {part.name: part for part in done}
        for name in names:
            if name not in by_name:
                raise Wrong(f"the part {name} did not run")
            if not self.least.get(name):
                by_name[name].fail(f"{name}: no least count", "tests/expected.toml has none")
        for name in sorted(set(self.least) - set(names)):
            raise Wrong(f"tests/expected.toml has a least count for '{name}', which is no part")

        for part in done:
            self._check_part(part)

    def _check_part(self, part):
        allowed = 0
        excused = False
        for test, reason in part.skipped:
            row = next((r for r in self.rows if r.allows(part.name, test, reason)), None)
            if not row:
                part.fail(f"skipped, and tests/expected.toml does not allow it: {test}: {reason}")
                continue
            allowed += 1
            excused = excused or row.whole

        least = self.least.get(part.name, 0)
        if not excused and part.passed + allowed < least:
            part.fail(f"{part.name}: too few tests", f"{part.passed} passed and {allowed} were skipped "
                      f"with leave, but tests/expected.toml asks for {least}")


# ---- the proof that each rule can fail ----

ROWS = [
    {"part": "a", "test": "t", "reason": "no IPv6", "because": "x"},
    {"part": "a", "test": "u", "reason": "needs root", "because": "x", "where": "false"},
    {"part": "b", "test": "b", "reason": "no registry", "because": "x", "whole": True},
]
# (passed, skipped of a; passed, skipped of b; failures of a, of b)
CASES = [
    (10, [], 5, [], 0, 0),
    (11, [], 6, [], 0, 0),
    (9, [], 5, [], 1, 0),  # fewer than the least count
    (9, [("t", "no IPv6")], 5, [], 0, 0),
    (10, [("t", "no IPv4")], 5, [], 1, 0),  # another reason
    (10, [("tt", "no IPv6")], 5, [], 1, 0),  # another test
    (10, [("u", "needs root")], 5, [], 1, 0),  # this machine has what the row speaks of
    (10, [], 5, [("t", "no IPv6")], 0, 1),  # another part
    (8, [("t", "no IPv6")], 5, [], 1, 0),  # a skip that is allowed stands for one test
    (10, [], 0, [("b", "no registry")], 0, 0),
    (10, [], 0, [("b", "the script failed")], 0, 2),  # 77 alone excuses nothing
    (10, [], 0, [], 0, 1),
]
BAD_TABLES = [
    {"least": {"a": 1, "b": 1}, "skip": [{"part": "a", "test": "t", "reason": "r"}]},
    {"least": {"a": 1, "b": 1}, "skip": [{**ROWS[0], "wheer": "true"}]},
    {"least": {"a": 1, "b": 1}, "lest": {}},
    {"least": {"a": 1, "b": 1, "c": 1}},
]


def self_test(make_part):
    """What went wrong, as lines; nothing when every rule holds and can fail."""
    for a_passed, a_skipped, b_passed, b_skipped, a_failures, b_failures in CASES:
        a, b = make_part("a"), make_part("b")
        a.passed, a.skipped, b.passed, b.skipped = a_passed, a_skipped, b_passed, b_skipped
        Table({"least": {"a": 10, "b": 5}, "skip": ROWS}).check([a, b], ["a", "b"])
        if (len(a.failed), len(b.failed)) != (a_failures, b_failures):
            yield f"{a_passed, a_skipped, b_passed, b_skipped}: {a.failed}, {b.failed}"

    missing = make_part("b")
    missing.passed = 1
    Table({"least": {}}).check([missing], ["b"])
    if not missing.failed:
        yield "a part without a least count passed"

    for data in BAD_TABLES:
        try:
            Table(data).check([make_part("a"), make_part("b")], ["a", "b"])
        except Wrong:
            continue
        yield f"a table was taken: {data}"
    try:
        Table({"least": {"a": 1}}).check([make_part("a")], ["a", "b"])
        yield "a part that did not run was not missed"
    except Wrong:
        pass

    if Table({"least": {"a": 1}, "nightly": {"a": 2}}, nightly=True).least != {"a": 2}:
        yield "nightly counts are not used"
    Table.read(nightly=False)
    Table.read(nightly=True)
