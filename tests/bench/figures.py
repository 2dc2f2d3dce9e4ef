"""The rows of the benchmarks: where each number lies in what the programs wrote, what it is a multiple
of, what we aim for, and whether it got slower since the last release.

A row's value is a ratio to a floor that was taken in turns with it in the same run, wherever there is
one: times of two runs or of two machines are not comparable, ratios are. Several runs give a median
and a spread (the smallest and the largest).
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

FILES = ("bench", "bench-server", "bench-e2b", "bench-python", "bench-contexts",
         "bench-link", "bench-density", "bench-console")
# A median whose slowest hundredth takes more than so many times as long meets no aim.
TAIL = 4
# What is worse than everything of the last release by so much got slower.
MARGIN = 1.05
BLOCK = re.compile(r"(<!-- figures -->\n```json\n)(.*?)(\n```\n<!-- /figures -->)", re.S)


class Missing(Exception):
    """A number that this run did not take."""


@dataclass
class Reading:
    """One row in one run: its value, and its times in ms where it is a latency."""

    value: float
    p50: Optional[float] = None
    p95: Optional[float] = None
    p99: Optional[float] = None


@dataclass
class Row:
    key: str
    what: str
    floor: str
    aim: float
    read: Callable[[dict], Reading]
    unit: str = "x"
    more_is_better: bool = False

    def text(self, value):
        digits = 2 if self.unit == "x" else 1 if self.unit in ("ms", "s") else 0
        return f"{value:.{digits}f}{'' if self.unit == 'x' else ' ' + self.unit}"

    def reaches(self, value):
        """In the digits that are printed: 1.003 is 1.00."""
        shown = float(self.text(value).split()[0])
        return shown >= self.aim if self.more_is_better else shown <= self.aim

    def is_worse(self, value, other):
        return value * MARGIN < other if self.more_is_better else value > other * MARGIN


@dataclass
class Result:
    """One row over all runs."""

    row: Row
    value: float
    low: float
    high: float
    runs: int
    p50: Optional[float]
    p95: Optional[float]
    p99: Optional[float]

    @property
    def has_tail(self):
        return self.p50 is not None and self.p99 > TAIL * self.p50

    @property
    def is_met(self):
        return self.row.reaches(self.value) and not self.has_tail

    @property
    def verdict(self):
        if self.is_met:
            return "met"
        return "no: p99" if self.row.reaches(self.value) else "no"


def percentile(values, hundredths):
    """The value that so many hundredths of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * hundredths / 100) - 1)]


def median(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def look_up(data, *path):
    """A number, or a part, of what the programs wrote."""
    for name in path:
        if not isinstance(data, dict) or data.get(name) is None:
            raise Missing("/".join(path))
        data = data[name]
    return data


def latency(file, name, floor):
    """A latency of one of the C programs, as a multiple of another one there."""

    def read(data):
        p50, p95, p99 = (look_up(data, file, "latency", name, f"p{p}_us") / 1000 for p in (50, 95, 99))
        return Reading(p50 / (look_up(data, file, "latency", floor, "p50_us") / 1000), p50, p95, p99)

    return read


def times(file, path, floor=None):
    """A list of milliseconds, as a multiple of another one's median or as it is."""

    def read(data):
        values = look_up(data, file, *path)
        p50, p95, p99 = (percentile(values, p) for p in (50, 95, 99))
        base = percentile(look_up(data, file, *floor), 50) if floor else 1
        return Reading(p50 / base, p50, p95, p99)

    return read


def number(*path, of=None, by=1.0):
    def read(data):
        value = look_up(data, *path)
        if of:
            base = look_up(data, *of)
            if not base:
                raise Missing("/".join(of))
            value /= base
        return Reading(value * by)

    return read


def sandbox_memory(data):
    """The heavier of both storages, in KB."""
    levels = look_up(data, "bench-server", "idle")
    found = [level["bytes_per_sandbox"] for level in levels if level.get("bytes_per_sandbox")]
    if not found:
        raise Missing("bench-server/idle")
    return Reading(max(found) / 1024)


def link_memory(data):
    """Of an idle sandbox elsewhere, in KB: of its three processes on this machine."""
    idle = look_up(data, "bench-link", "idle")
    return Reading(sum(bytes_ for name, bytes_ in idle.items() if name != "box") / 1024)


SH = "posix_spawn of sh -c true"
CELL = "a cell `1+1`"
ROWS = (
    Row("line-true", "the line `true` over HTTP", "`sh -c true`", 1.0,
        latency("bench-server", "command", "spawn-sh")),
    Row("line-ls", "the line `ls /` over HTTP", "`sh -c 'ls /'`", 1.3,
        latency("bench-server", "command-ls", "spawn-sh-ls")),
    Row("argv", "exec of `/bin/true` over HTTP", "`/bin/true`", 1.3,
        latency("bench-server", "exec", "spawn-true")),
    Row("docker-line", "the line `true` in docker over HTTP", "the same in a jail", 1.3,
        latency("bench-server", "docker-line", "jail-line")),
    Row("docker-argv", "exec of `/bin/true` in docker over HTTP", "the same in a jail", 1.3,
        latency("bench-server", "docker-argv", "jail-argv")),
    Row("exec", "exec in a waiting jail", "`/bin/true`", 1.1, latency("bench", "exec", "floor")),
    Row("exec-group", "the same in its own cgroup", "`/bin/true`", 1.2,
        latency("bench", "exec-group", "floor")),
    Row("cold", "create + exec + destroy, running keeper", "`/bin/true`", 1.7,
        latency("bench", "cold", "floor")),
    Row("pool", "create from the pool until the first byte", "`/bin/echo x`", 1.4,
        latency("bench-server", "warm", "spawn-echo")),
    Row("no-pool", "create without the pool until the first byte", "`/bin/echo x`", 2.7,
        latency("bench-server", "cold", "spawn-echo")),
    Row("run", "`paddock run -- /bin/true`, nothing running", "bubblewrap", 0.88,
        latency("bench", "run", "bubblewrap")),
    Row("sustained", "create + exec + destroy per second, two creators", "a bare loop", 0.75,
        number("bench", "sustained", "keeper", "per_second",
               of=("bench", "sustained", "bare", "per_second")), more_is_better=True),
    Row("python-local", 'Python `execute("true")`, local', "`sh -c true`", 1.1,
        times("bench-python", ['local: execute("true")'], [SH])),
    Row("python-remote", 'Python `execute("true")`, remote', "`sh -c true`", 1.4,
        times("bench-python", ['remote: execute("true")'], [SH])),
    Row("e2b", "E2B's JavaScript SDK: create, first command, kill", "", 8,
        times("bench-e2b", ["times", "all"]), unit="ms"),
    Row("cell", "a cell `1+1` over HTTP", "", 2, times("bench-contexts", ["times", CELL]), unit="ms"),
    Row("cell-peer", "the same", "E2B's own server", 0.05,
        times("bench-contexts", ["times", CELL], ["times", "the same at the peer's server"])),
    Row("cell-first", "first cell of a fresh sandbox", "", 60,
        times("bench-contexts", ["times", "first cell of a fresh sandbox"]), unit="ms"),
    Row("cell-frame", "create and first DataFrame, warm pool", "", 40,
        times("bench-contexts", ["times", "create and first DataFrame"]), unit="ms"),
    Row("cell-fork", "fork of a context with 200 MB", "", 10,
        times("bench-contexts", ["times", "fork of a context with 200 MB"]), unit="ms"),
    Row("cell-idle", "memory of an idle bare context", "", 8,
        number("bench-contexts", "idle_bytes", by=1 / (1 << 20)), unit="MiB"),
    Row("cell-copy", "memory of an idle context with pandas, beside its zygote's", "", 4,
        number("bench-contexts", "copy_bytes", by=1 / (1 << 20)), unit="MiB"),
    Row("idle", "memory of an idle sandbox", "", 600, sandbox_memory, unit="KB"),
    Row("link-argv", "exec of `/bin/true` in a rented sandbox over HTTP", "the same in a jail", 1.6,
        times("bench-link", ["times", "link"], ["times", "jail"])),
    *(Row(f"link-{ms}", f"a file read over a link of {ms} ms there and back", "", aim,
          number("bench-link", "bytes_per_s", ms, by=1e-6), unit="MB/s", more_is_better=True)
      for ms, aim in (("0", 200), ("20", 30), ("100", 7))),
    Row("link-idle", "memory of an idle sandbox elsewhere, on this machine", "", 100, link_memory, unit="KB"),
    Row("link-box", "memory of paddock-box in it", "", 1024, number("bench-link", "idle", "box", by=1 / 1024), unit="KB"),
    Row("console-paint", "the console's list of 10,000: first paint", "", 300, times("bench-console", ["paint_ms"]), unit="ms"),
    Row("console-rows", "the same: first rows", "", 600, times("bench-console", ["rows_ms"]), unit="ms"),
    Row("console-filter", "the same: a filter", "", 16, times("bench-console", ["filter_ms"]), unit="ms"),
    Row("console-scroll", "the same: the longest time between two frames while it scrolls", "", 50,
        number("bench-console", "scroll_gap_ms"), unit="ms"),
    Row("console-scroll-work", "the same: the longest work of the page's thread", "", 50, number("bench-console", "scroll_work_ms"), unit="ms"),
    Row("console-terminal", "a terminal that is written to at 10 MB/s", "", 9.9,
        number("bench-console", "terminal_bytes_per_s", by=1e-6), unit="MB/s", more_is_better=True),
    Row("console-memory", "memory of the server for each open console", "", 64, number("bench-console", "console_kib"), unit="KB"),
    Row("density-create", "creation with all sandboxes there", "with few", 1.2,
        number("bench-density", "create_last_floors", of=("bench-density", "create_first_floors"))),
    Row("density-memory", "the server's own memory with all of them", "", 150,
        number("bench-density", "server_rss", by=1 / (1 << 20)), unit="MiB"),
    Row("density-restart", "restart after `kill -9` with all of them", "", 10,
        number("bench-density", "restart_s"), unit="s"),
)


def load(directory):
    """What the programs wrote into one directory, by the names of the files."""
    data = {}
    for name in FILES:
        path = Path(directory) / f"{name}.json"
        if path.exists():
            data[name] = json.loads(path.read_text(encoding="utf-8"))
    return data


def results(runs, rows=ROWS):
    """The rows that at least one run has, as medians over the runs that have them."""
    found = []
    for row in rows:
        readings = []
        for data in runs:
            try:
                readings.append(row.read(data))
            except Missing:
                pass
        if not readings:
            continue

        values = [r.value for r in readings]
        p50, p95, p99 = (
            median([getattr(r, p) for r in readings]) if readings[0].p50 is not None else None
            for p in ("p50", "p95", "p99"))
        found.append(Result(row, median(values), min(values), max(values), len(values), p50, p95, p99))
    return found


def is_busy(runs):
    """Whether most measurements began while others wanted a processor."""
    parts = [data[name] for data in runs for name in ("bench", "bench-server", "bench-contexts") if name in data]
    starts = sum(part.get("starts", 0) for part in parts)
    return starts > 0 and sum(part.get("calm_starts", 0) for part in parts) < starts / 2


def slower(found, before):
    """Pairs of a result and what the last release had, where it is worse than all of that's runs."""
    worse = []
    for result in found:
        then = before.get(result.row.key)
        if then and result.row.is_worse(result.value, then["low" if result.row.more_is_better else "high"]):
            worse.append((result, then))
    return worse


def table(found):
    """Markdown: each row with its aim."""
    lines = ["| | of | median | runs | p50 ms | p95 ms | p99 ms | aim | met |",
             "|---|---|---:|---:|---:|---:|---:|---:|---|"]
    for r in found:
        spread = f"{r.runs}: {r.row.text(r.low)} to {r.row.text(r.high)}" if r.runs > 1 else "1"
        cells = [f"{ms:.2f}" if ms is not None else "" for ms in (r.p50, r.p95, r.p99)]
        sign = "at least " if r.row.more_is_better else ""
        lines.append(f"| {r.row.what} | {r.row.floor} | {r.row.text(r.value)} | {spread} | {' | '.join(cells)} "
                     f"| {sign}{r.row.text(r.row.aim)} | {r.verdict} |")
    return "\n".join(lines)


def read_block(text):
    """The figures of the last release in docs/benchmarks.md: {"of": ..., "rows": {key: ...}}."""
    found = BLOCK.search(text)
    if not found:
        raise ValueError("docs/benchmarks.md has no block of figures (<!-- figures -->)")
    return json.loads(found[2])


def write_block(text, of, found):
    rows = {r.row.key: {"median": round(r.value, 3), "low": round(r.low, 3), "high": round(r.high, 3)}
            for r in found}
    lines = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in rows.items())
    block = f'{{"of": {json.dumps(of)}, "rows": {{\n{lines}\n}}}}'
    if not BLOCK.search(text):
        raise ValueError("docs/benchmarks.md has no block of figures (<!-- figures -->)")
    return BLOCK.sub(lambda m: m[1] + block + m[3], text)
