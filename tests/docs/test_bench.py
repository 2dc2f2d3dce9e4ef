"""The logic of the benchmarks: percentiles, medians, aims, the comparison with the last release, the
picture. And `make bench QUICK=1`, from its beginning to its end."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from paddock_testing import engine
from paddock_testing import run as paddock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/bench"))

import figures  # noqa: E402  (the path above comes first)
import picture  # noqa: E402


def run_of(exec_us, floor_us=1000, p99_us=None, starts=10, calm=10):
    """What the programs would have written."""
    series = {"p50_us": exec_us, "p95_us": exec_us, "p99_us": p99_us or exec_us}
    floor = {"p50_us": floor_us, "p95_us": floor_us, "p99_us": floor_us}
    return {"bench": {"latency": {"exec": series, "floor": floor}, "starts": starts, "calm_starts": calm,
                      "sustained": {"keeper": {"per_second": 300}, "bare": {"per_second": 400}}}}


def result_of(key, *runs):
    return next(r for r in figures.results(runs) if r.row.key == key)


def test_percentile():
    values = list(range(100, 0, -1))
    assert [figures.percentile(values, p) for p in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert figures.percentile([7], 99) == 7
    assert figures.median([3, 1, 2]) == 2 and figures.median([4, 1, 2, 3]) == 2.5


def test_median_of_runs_and_its_spread():
    result = result_of("exec", run_of(1500), run_of(1000), run_of(1200))
    assert (result.value, result.low, result.high, result.runs) == (1.2, 1.0, 1.5, 3)
    assert result.p50 == 1.2


def test_rows_that_were_not_measured_are_left_out():
    assert {r.row.key for r in figures.results([run_of(1000)])} == {"exec", "sustained"}


@pytest.mark.parametrize("run, verdict", [
    (run_of(1100), "met"),
    (run_of(1104), "met"),  # 1.10 in the digits that are shown
    (run_of(1110), "no"),
    (run_of(1000, p99_us=4000), "met"),
    (run_of(1000, p99_us=4001), "no: p99"),
    (run_of(1200, p99_us=9000), "no"),
])
def test_aims(run, verdict):
    assert result_of("exec", run).verdict == verdict
    assert f"| {verdict} |" in figures.table(figures.results([run]))


def test_more_is_better_where_a_rate_is_compared():
    assert result_of("sustained", run_of(1000)).is_met
    less = run_of(1000)
    less["bench"]["sustained"]["keeper"]["per_second"] = 290
    assert not result_of("sustained", less).is_met


@pytest.mark.parametrize("key, value, is_slower", [
    ("exec", 1.0, False), ("exec", 1.3, False), ("exec", 1.36, False), ("exec", 1.37, True),
    ("sustained", 0.75, False), ("sustained", 0.66, False), ("sustained", 0.65, True),
])
def test_slower_is_what_is_beyond_the_spread(key, value, is_slower):
    before = {"exec": {"median": 1.2, "low": 1.1, "high": 1.3},
              "sustained": {"median": 0.8, "low": 0.69, "high": 0.9}}
    run = run_of(value * 1000)
    run["bench"]["sustained"]["keeper"]["per_second"] = value * 400
    found = [r for r in figures.results([run]) if r.row.key == key]
    assert bool(figures.slower(found, before)) == is_slower


def test_block_of_figures_is_read_as_it_was_written():
    page = "text\n<!-- figures -->\n```json\n{}\n```\n<!-- /figures -->\nmore\n"
    found = figures.results([run_of(1100), run_of(1300)])
    written = figures.write_block(page, "a release", found)
    block = figures.read_block(written)
    assert block["of"] == "a release"
    assert block["rows"]["exec"] == {"median": 1.2, "low": 1.1, "high": 1.3}
    assert written.startswith("text\n") and written.endswith("\nmore\n")
    with pytest.raises(ValueError):
        figures.read_block("a page without")


def test_figures_of_the_documentation_are_of_rows_that_there_are():
    block = figures.read_block((TOP / "docs/benchmarks.md").read_text(encoding="utf-8"))
    assert block["of"] and block["rows"]
    assert set(block["rows"]) <= {row.key for row in figures.ROWS}
    assert all(r["low"] <= r["median"] <= r["high"] for r in block["rows"].values())


def test_picture():
    """A bar for what was measured, a reason for what was not."""
    run = run_of(1100)
    run["bench"]["latency"]["docker"] = {"samples": 0, "skipped": "its daemon <did> not start"}
    svg = picture.draw([run])
    ElementTree.fromstring(svg)
    assert svg.count("<rect") == 2 and "1.10 ms" in svg
    assert "its daemon &lt;did&gt; not start" in svg and "prefers-color-scheme: dark" in svg
    assert picture.place(0.1) == 0 < picture.place(1) < picture.place(10) < picture.place(1000)
    assert picture.place(10) == pytest.approx(2 * picture.place(1))


def test_picture_of_the_documentation_is_small_and_stands_alone():
    svg = (TOP / "docs/benchmarks.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(svg)
    assert len(svg) < 16000
    assert not re.search(r"href|<script|@import|url\(", svg)


def report(*words):
    return subprocess.run([TOP / "tests/bench/report", *words], cwd=TOP, text=True, capture_output=True,
                          timeout=paddock.seconds(60), check=False)


def test_status_tells_what_got_slower(tmp_path):
    """Against the figures of the documentation: much slower, the same on a busy machine, much faster."""
    out = tmp_path / "bench.json"

    out.write_text(json.dumps(run_of(90000)["bench"]))
    done = report(tmp_path)
    assert done.returncode == 3 and "slower than" in done.stdout and "exec in a waiting jail" in done.stdout, done
    assert (tmp_path / "bench.svg").exists()
    assert report("--quick", tmp_path).returncode == 0

    out.write_text(json.dumps(run_of(90000, calm=1)["bench"]))
    done = report(tmp_path)
    assert done.returncode == 0 and "the machine was busy" in done.stdout, done

    run = run_of(100)
    run["bench"]["sustained"]["keeper"]["per_second"] = 4000
    out.write_text(json.dumps(run["bench"]))
    done = report(tmp_path)
    assert done.returncode == 0 and "nothing is slower" in done.stdout, done

    assert report(tmp_path / "empty").returncode == 2


def test_make_bench_quick():
    """It gets to the end; what it measures here means nothing."""
    said = subprocess.run(["tests/bench/run", "--quick"], cwd=TOP, text=True, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=paddock.seconds(300), check=False,
                          env=paddock.clean_environment())
    assert said.returncode == 0, f"status {said.returncode}\n{said.stdout}\n{said.stderr}"
    for row in ("the line `true` over HTTP", "create + exec + destroy per second", "aims are met"):
        assert row in said.stdout, said


def bench_docker(program, out, *words):
    """What was said, and the latencies that it wrote."""
    said = subprocess.run([*program, *words, "--json", out], cwd=TOP, text=True, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=paddock.seconds(300), check=False,
                          env=paddock.clean_environment())
    assert said.returncode == 0, said
    return said.stdout, json.loads(out.read_text(encoding="utf-8"))["latency"]


def test_docker_beside_the_jail(tmp_path):
    """With an engine every row is there, and `docker exec` with them; without one, the reason."""
    said, latency = bench_docker(["tests/bench/run", "--only", "server-docker"], tmp_path / "out.json",
                                 "--rounds", "10", "--calm", "1")
    rows = ("jail-argv", "docker-argv", "jail-line", "docker-line", "engine-exec")
    if engine.why_not("docker"):
        assert "docker was left out: " in said and latency["docker-line"]["skipped"], said
        return
    assert [latency[row]["samples"] for row in rows] == [10, 10, 10, 10, 2], said
    assert "| `docker exec` of `/bin/true` |" in said
    found = {r.row.key for r in figures.results([{"bench-server": {"latency": latency}}])}
    assert found == {"docker-line", "docker-argv"}


def test_docker_is_left_out_with_a_reason(tmp_path):
    """The program alone starts no engine."""
    said, latency = bench_docker(["build/tests/bench/paddock-server-bench", "--only", "docker"],
                                 tmp_path / "out.json")
    assert "docker was left out: only tests/bench/run starts a daemon" in said
    assert latency["docker-line"]["samples"] == 0
    assert not figures.results([{"bench-server": {"latency": latency}}])
