"""`paddock run --provider local`: no isolation, but the same streams, statuses, limits of time and
output, and the same record."""

import os
import signal
import subprocess
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import Terminal, check_one_line, new_word, pause, raw, read_line

NOTICE = b"local runs without isolation"


def local(line, **options):
    return paddock.run(["/bin/bash", "-c", line], provider="local", **options)


def with_word(word):
    """Each command line is read once: while a process becomes another program it has none."""
    return [p for p in host.pids() if word in (line := host.command_line(p)) and not host.is_zombie(p)
            and line[0].endswith("sleep")]


def test_it_runs_on_the_host(tmp_path):
    result = local(f"echo x >{tmp_path}/f; hostname; id -u; pwd", cwd=tmp_path)
    assert result.out == f"{os.uname().nodename}\n{os.getuid()}\n{tmp_path}\n", result.explain()
    assert (tmp_path / "f").read_text() == "x\n"


def test_environment_is_the_callers_and_env_adds():
    result = local("echo $A $B $HOME", env={"A": "outer", "B": "outer", "HOME": "/h"},
                   env_in={"B": "given"})
    assert result.out == "outer given /h\n"


def test_it_says_so_once_on_a_terminal():
    with Terminal.run(["/bin/sh", "-c", "echo ran"], provider="local") as t:
        assert t.wait() == 0
        assert t.seen.count(NOTICE) == 1 and t.seen.count(b"ran\r\n") == 1


def test_it_says_nothing_elsewhere():
    result = raw(["/bin/echo", "ran"], provider="local")
    assert (result.stdout, result.stderr) == (b"ran\n", b"")


def test_the_terminal_is_the_callers():
    with Terminal.run(["/bin/sh", "-c", "tty; stty size"], provider="local", rows=40,
                      columns=90) as t:
        assert t.wait() == 0
        assert os.ttyname(t.slave).encode() + b"\r\n40 90\r\n" in t.seen
        t.check_restored()


def test_ctrl_c_ends_the_command():
    word = new_word()
    with Terminal.run(["/bin/sleep", word], provider="local") as t:
        paddock.wait_for(lambda: with_word(word), 5, "it runs")
        t.send(b"\x03")
        assert t.wait() == 128 + signal.SIGINT
    assert not with_word(word)


def test_streams_and_status():
    data = bytes(range(256)) * 1000
    result = raw(["/bin/sh", "-c", "cat; echo err >&2; exit 7"], stdin=data, provider="local")
    assert (result.returncode, result.stdout, result.stderr) == (7, data, b"err\n")
    assert raw(["/bin/sh", "-c", "kill -9 $$"], provider="local").returncode == 137


def test_commands_that_cannot_run():
    check_one_line(paddock.run(["no-such-command"], provider="local"), 127, "no-such-command")
    check_one_line(paddock.run(["/etc/passwd"], provider="local"), 126, "/etc/passwd")


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "USR1"])
def test_signals_are_forwarded(name):
    line = f"trap 'echo got; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    with paddock.background(["/bin/bash", "-c", line], provider="local") as process:
        assert read_line(process) == b"ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert read_line(process) == b"got\n"
        assert process.wait(timeout=paddock.seconds(5)) == 9


@pytest.mark.parametrize("line", [
    "sleep WORD", "trap '' TERM INT; sleep WORD; sleep WORD", "setsid sleep WORD & sleep WORD",
    "( ( setsid sleep WORD >/dev/null 2>&1 & ) & ); sleep WORD",
    "sleep WORD & kill -STOP $!; kill -STOP $$"])
def test_timeout_ends_the_whole_tree(line):
    word = new_word()
    start = time.monotonic()
    result = local(line.replace("WORD", word), timeout=f"{pause(0.4)}s")
    assert result.status == 124, result.explain()
    assert "--timeout" in result.err and result.err.count("\n") == 1
    assert time.monotonic() - start < pause(0.4) + paddock.seconds(2)
    assert not with_word(word)


def test_output_limit():
    result = raw(["/usr/bin/yes"], provider="local", output="100K")
    assert result.returncode == 137 and 100 << 10 <= len(result.stdout) <= 1 << 20
    assert b"--output" in result.stderr


def test_file_size_limit(tmp_path):
    result = paddock.run_record(["/bin/dd", "if=/dev/zero", f"of={tmp_path}/f", "bs=1M", "count=2"],
                                provider="local", file_size="1M")
    assert result.record["signal"] == signal.SIGXFSZ
    assert result.record["stopped_by"] == "disk", result.explain()


def test_workdir(tmp_path):
    assert local("pwd", workdir=tmp_path).out == f"{tmp_path}\n"
    check_one_line(local("pwd", workdir="/no/such"), 2, "/no/such")


def test_record():
    record = paddock.run_record(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"],
                                provider="local").record
    assert (record["exit_code"], record["stdout"], record["stderr"]) == (3, "out\n", "err\n")
    assert (record["provider"], record["isolation"]) == ("local", "none")
    assert record["signal"] is None and record["stopped_by"] is None
    assert record["process_id"] > 1 and record["max_rss_bytes"] > 0
    result = paddock.run_record(["/bin/sleep", "60"], provider="local", timeout="300ms")
    assert result.record["stopped_by"] == "timeout" and result.record["timed_out"] is True
    assert result.record["exit_code"] == result.status == 124


def test_background_child_does_not_delay_the_end():
    word = new_word()
    start = time.monotonic()
    result = paddock.run_record(["/bin/sh", "-c", f"sleep {word} & echo started"],
                                provider="local")
    assert time.monotonic() - start < paddock.seconds(3)
    assert result.record["stdout"] == "started\n"
    for pid in with_word(word):
        os.kill(pid, signal.SIGKILL)  # no isolation: what the command left behind stays


@pytest.mark.parametrize("option,value", [("name", "box"), ("root", "/usr"), ("bind", "/usr:/x")])
def test_options_that_need_a_sandbox_are_refused(option, value):
    result = local("echo ran", **{option: value})
    check_one_line(result, 2, "local", f"--{option}")


@pytest.mark.parametrize("rung", ["basic", "full"])
def test_isolation_that_was_asked_for_is_refused(rung):
    check_one_line(local("echo ran", min_isolation=rung), 125, "local", f"'{rung}'")
    assert local("echo ran", min_isolation="none").out == "ran\n"


def test_reader_that_goes_away():
    process = subprocess.Popen(paddock.jail_argv(["/usr/bin/yes"], provider="local"),
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               stdin=subprocess.DEVNULL, env=paddock.clean_environment())
    try:
        assert read_line(process) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=paddock.seconds(5)) == 128 + signal.SIGPIPE
    finally:
        paddock.end(process)
