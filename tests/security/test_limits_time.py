"""Time and output: a time-out ends everything whatever it did, a flood costs nothing outside."""

import os
import subprocess
import threading
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.battery import COMBINATIONS

from .limit_checks import PROBE, check_gone, check_host, check_neighbour, new_word

MIB = 1 << 20
TIMEOUT = min(paddock.seconds(1), 10)  # long enough for a command to start where all is slow


def run_until_timeout(command, **options):
    """Runs with a time-out; returns the result and the pid namespace that it was in."""
    word = new_word()
    seen = {"looks": 0}
    over = threading.Event()

    def watch():
        while not seen.get("namespace") and not over.is_set():
            seen["looks"] += 1
            # One that has just ended has none any more.
            names = [host.namespace(pid, "pid") for pid in host.with_word(word)]
            seen["namespace"] = next(filter(None, names), "")
            over.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = paddock.run_record([*command, word], timeout=f"{TIMEOUT:g}s", limit=10, **options)
    finally:
        over.set()
        watcher.join()
    assert seen["namespace"], f"the command was not seen on the host in {seen['looks']} looks"
    return result, seen["namespace"]


STUBBORN = [
    ("ignores-signals-detached-stopped", [PROBE, "stubborn"]),
    ("shell-traps", ["/bin/sh", "-c", "trap '' TERM HUP INT QUIT; (setsid sleep 600 &);"
                     " (setsid sh -c 'trap \"\" TERM; sleep 600' &); sleep 600"]),
    ("stops-itself", ["/bin/sh", "-c", "kill -STOP $$; sleep 600"]),
    ("stops-everybody", ["/bin/sh", "-c", "(sleep 600 &); kill -STOP -1; kill -STOP $$"]),
    ("spins", [PROBE, "spin", 600, 4]),
    ("waits-in-vfork", ["/usr/bin/python3", "-c",
                        "import subprocess; subprocess.run(['/bin/sh', '-c', 'kill -STOP $PPID;"
                        " sleep 600'])"]),
    ("ptraced", ["/usr/bin/python3", "-c",
                 "import ctypes, os, time\nl = ctypes.CDLL(None)\np = os.fork()\n"
                 "if p == 0:\n l.ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)\ntime.sleep(600)"]),
]


@pytest.mark.parametrize("profile,user", [("strict", "user"), ("dev", "root")])
@pytest.mark.parametrize("name,command", STUBBORN, ids=[s[0] for s in STUBBORN])
def test_timeout_ends_everything(fixtures, name, command, profile, user):
    result, namespace = run_until_timeout(command, binds=fixtures.binds(), profile=profile,
                                          user=user)
    assert result.status == 124, result.explain()
    assert result.record["timed_out"] is True and result.record["stopped_by"] == "timeout"
    assert TIMEOUT * 0.9 <= result.took < TIMEOUT + paddock.seconds(2), result.explain()
    check_gone(namespace, 2)


@pytest.mark.parametrize("profile,user", COMBINATIONS)
def test_what_a_command_leaves_behind_ends_with_it(fixtures, profile, user):
    """A one-shot run is over when its command is: background processes do not keep it."""
    word = new_word()
    result = paddock.run(["/bin/sh", "-c", f"(setsid {PROBE} hold 600 {word} >/dev/null 2>&1 &);"
                          " sleep 0.2; exit 3"], binds=fixtures.binds(), profile=profile, user=user,
                         limit=8)
    assert result.status == 3, result.explain()
    paddock.wait_for(lambda: not host.with_word(word), 2, "the detached process is gone")


def test_a_background_process_that_holds_the_output_does_not_hang_the_caller(fixtures):
    word = new_word()
    result = paddock.run(["/bin/sh", "-c", f"{PROBE} hold 600 {word} & echo started"],
                         binds=fixtures.binds(), limit=8)
    assert result.status == 0 and "started" in result.out, result.explain()
    paddock.wait_for(lambda: not host.with_word(word), 2, "the background process is gone")


def processes_of(process):
    """The program that was called and what it started outside of jails."""
    own = host.namespace(os.getpid(), "pid")
    return [p for p in [process.pid, *host.descendants(process.pid)]
            if host.namespace(p, "pid") == own]


@pytest.mark.parametrize("command", [["yes"], ["cat", "/dev/zero"]], ids=["lines", "one-line"])
def test_a_client_that_never_reads_costs_no_memory(fixtures, command):
    with paddock.background(command) as process:
        paddock.wait_for(lambda: len(host.descendants(process.pid)) > 0
                         or process.poll() is not None, 5, "the flood runs")
        time.sleep(min(paddock.span(1), 5))
        before = sum(host.rss(p) for p in processes_of(process))
        time.sleep(min(paddock.span(2), 10))
        after = sum(host.rss(p) for p in processes_of(process))
        assert process.poll() is None, "the flood ended"
        assert after - before <= MIB, f"grew from {before} to {after}"
        check_neighbour()


def test_a_flood_into_a_record_is_cut_and_the_memory_bounded(fixtures):
    """--json holds the output in memory, so it has a limit; what is cut is said."""
    argv = paddock.jail_argv(["/bin/sh", "-c", "head -c 200M /dev/zero | tr '\\0' x"],
                             json_record=True, output="1M")
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=paddock.clean_environment())
    peak = [0]

    def watch():
        while process.poll() is None:
            peak[0] = max(peak[0], *(host.rss(p) for p in processes_of(process)), 0)
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, err = process.communicate(timeout=paddock.seconds(20))
    watcher.join()
    import json
    record = json.loads(out)
    # What is cut out of the middle is replaced by a line that says how much it was.
    assert len(record["stdout"]) <= MIB + 64, err
    assert record["stdout_truncated"] is True
    assert record["stopped_by"] in ("output", None)
    assert peak[0] < 16 * MIB, f"{peak[0]} bytes at the peak"


def test_a_reader_that_goes_away_ends_the_flood(fixtures):
    """`paddock run -- yes | head -1` ends."""
    argv = paddock.jail_argv(["yes"])
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env=paddock.clean_environment())
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    try:
        process.wait(timeout=paddock.seconds(5))
    finally:
        paddock.end(process)
    check_host()


def test_terminating_the_client_ends_the_sandbox(fixtures):
    """Ctrl-C or SIGTERM end a command that lets them; a kill of the program that asked ends any."""
    for sig, command in (("TERM", "hold"), ("INT", "hold"), ("KILL", "stubborn")):
        word = new_word()
        process = subprocess.Popen(
            paddock.jail_argv([PROBE, command, 600, word], binds=fixtures.binds()),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=paddock.clean_environment())
        try:
            paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
            subprocess.run(["kill", "-" + sig, str(process.pid)], check=True)
            paddock.wait_for(lambda: not host.with_word(word), 4, f"gone after SIG{sig}")
        finally:
            paddock.end(process)
