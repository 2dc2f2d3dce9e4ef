"""`paddock run` beside running a command directly: streams, exit status, signals, environment."""

import hashlib
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import ROOT_ONLY, call, check_gone, check_one_line, new_word, pause, raw, read_line

EVERY_BYTE = bytes(range(256)) * 300
MB = 1000 * 1000


# Streams


def test_output_goes_to_the_stream_it_was_written_to():
    result = raw(["/bin/sh", "-c", "echo to-out; echo to-err >&2"])
    assert (result.returncode, result.stdout, result.stderr) == (0, b"to-out\n", b"to-err\n")


def test_every_byte_passes_both_ways():
    result = raw(["/bin/cat"], stdin=EVERY_BYTE)
    assert (result.returncode, result.stdout, result.stderr) == (0, EVERY_BYTE, b"")


def test_every_byte_passes_on_stderr():
    result = raw(["/bin/sh", "-c", "cat >&2"], stdin=EVERY_BYTE)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", EVERY_BYTE)


def test_nothing_is_added_to_an_output_without_newline():
    assert raw(["/usr/bin/printf", "no newline"]).stdout == b"no newline"


def test_many_megabytes_pass_a_slow_reader():
    """100 MB; the reader takes its time, and nothing is lost or kept in memory."""
    size = 100 * MB if paddock.SLOW < 2 else 10 * MB
    argv = paddock.jail_argv(["/usr/bin/head", "-c", size, "/dev/zero"])
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               env=paddock.clean_environment())
    try:
        got, peak = 0, 0
        while True:
            if got < 10 * MB:
                time.sleep(0.005)
                peak = max(peak, host.rss(process.pid))
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            assert data.count(0) == len(data)
            got += len(data)
        assert process.wait(timeout=paddock.seconds(10)) == 0
        assert got == size
        assert 0 < peak < 8 * MB
    finally:
        paddock.end(process)


def test_many_megabytes_pass_into_the_sandbox(tmp_path):
    size = 30 * MB if paddock.SLOW < 2 else 3 * MB
    given = tmp_path / "given"
    given.write_bytes(os.urandom(MB) * (size // MB))
    with open(given, "rb") as f:
        result = raw(["/usr/bin/sha256sum"], stdin=f)
    assert result.stdout.split()[0].decode() == hashlib.sha256(given.read_bytes()).hexdigest()


def test_input_that_nobody_reads_does_not_block_the_end():
    """More than any pipe holds, and the command ends without a look at it."""
    result = raw(["/bin/true"], stdin=bytes(MB), limit=5)
    assert result.returncode == 0, result.stderr


def test_command_that_closes_its_input_early_goes_on():
    result = raw(["/bin/sh", "-c", "head -c 5; exec <&-; sleep 0.3; echo end"], stdin=b"x" * MB)
    assert (result.returncode, result.stdout) == (0, b"xxxxxend\n"), result.stderr


@pytest.mark.parametrize("kind", ["null", "file", "pipe", "socket", "closed"])
def test_input_of_every_kind_ends(kind, tmp_path):
    given = tmp_path / "given"
    given.write_bytes(b"abc")
    argv = paddock.jail_argv(["/usr/bin/wc", "-c"])
    near = far = None
    if kind == "closed":
        argv = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *argv]
    elif kind == "file":
        near = os.open(given, os.O_RDONLY)
    elif kind == "pipe":
        near, far = os.pipe()
        os.write(far, b"abc")
        os.close(far)
    elif kind == "socket":
        ours, theirs = socket.socketpair()
        near = theirs.detach()
        ours.sendall(b"abc")
        ours.close()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL if near is None else near, check=False,
                          capture_output=True, timeout=paddock.seconds(10),
                          env=paddock.clean_environment())
    if near is not None:
        os.close(near)
    expected = b"0\n" if kind in ("null", "closed") else b"3\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_input_may_come_bit_by_bit():
    """An answer to each line, before the next is sent: nothing waits for a full buffer."""
    with paddock.background(["/bin/sh", "-c", "while read l; do echo got $l; done; echo end"],
                            stdin=subprocess.PIPE) as process:
        for i in range(5):
            process.stdin.write(b"%d\n" % i)
            process.stdin.flush()
            assert read_line(process) == b"got %d\n" % i
        process.stdin.close()
        process.stdin = None
        assert process.stdout.read() == b"end\n"
        assert process.wait(timeout=paddock.seconds(5)) == 0


def test_closed_output_does_not_stop_a_command_that_does_not_write():
    argv = paddock.jail_argv(["/bin/sh", "-c", "exit 5"])
    done = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", *argv], check=False,
                          stdin=subprocess.DEVNULL, timeout=paddock.seconds(10),
                          env=paddock.clean_environment())
    assert done.returncode == 5


def test_writer_without_a_reader_gets_sigpipe():
    """As directly: the writer dies of SIGPIPE, and that is the exit status."""
    process = subprocess.Popen(paddock.jail_argv(["/usr/bin/yes"]), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               env=paddock.clean_environment())
    try:
        assert read_line(process) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=paddock.seconds(5)) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
    finally:
        paddock.end(process)


def test_sigpipe_is_not_ignored_inside():
    """The caller may ignore it (as Python does for itself): the command starts with the default."""
    argv = paddock.jail_argv(["/bin/sh", "-c", "grep SigIgn /proc/self/status"])
    done = subprocess.run(argv, capture_output=True, text=True, check=True, restore_signals=False,
                          stdin=subprocess.DEVNULL, timeout=paddock.seconds(10),
                          env=paddock.clean_environment())
    assert int(done.stdout.split()[1], 16) == 0


def test_background_child_that_holds_the_output_does_not_delay_the_end():
    word = new_word()
    start = time.monotonic()
    result = raw(["/bin/sh", "-c", f"sleep {word} & echo started"])
    assert time.monotonic() - start < paddock.seconds(3)
    assert (result.returncode, result.stdout) == (0, b"started\n")
    check_gone(word)


def test_last_words_of_a_killed_writer_arrive():
    result = raw(["/bin/sh", "-c", "head -c 60000 /dev/zero; kill -9 $$"])
    assert (result.returncode, len(result.stdout)) == (137, 60000)


# Exit status and signals


@pytest.mark.parametrize("status", [0, 1, 2, 77, 124, 125, 126, 127, 130, 255])
def test_exit_status_is_the_commands(status):
    result = raw(["/bin/sh", "-c", f"exit {status}"])
    assert (result.returncode, result.stderr) == (status, b"")


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "ABRT", "INT", "PIPE", "USR1"])
def test_death_by_signal_is_128_and_its_number(name):
    result = raw(["/bin/sh", "-c", f"kill -{name} $$"])
    assert result.returncode == 128 + getattr(signal, f"SIG{name}"), result.stderr


def test_command_that_is_not_there():
    check_one_line(paddock.run(["no-such-command"]), 127, "no-such-command", "not found")
    check_one_line(paddock.run(["/no/such/file"]), 127, "/no/such/file")


def test_file_that_is_no_program():
    check_one_line(paddock.run(["/etc/passwd"]), 126, "/etc/passwd")
    check_one_line(paddock.run(["/usr"]), 126, "/usr")


def test_script_without_a_first_line_is_run_by_the_shell():
    line = "printf 'echo script $1' >s; chmod +x s; exec env ./s arg"
    assert raw(["/bin/sh", "-c", line]).stdout == b"script arg\n"


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_are_forwarded(name):
    line = f"trap 'echo got-{name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    with paddock.background(["/bin/bash", "-c", line]) as process:
        assert read_line(process) == b"ready\n"
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert read_line(process) == f"got-{name}\n".encode()
        assert process.wait(timeout=paddock.seconds(5)) == 9


def test_signal_that_is_not_caught_ends_the_command():
    word = new_word()
    for name in ("INT", "TERM", "HUP"):
        sig = getattr(signal, f"SIG{name}")
        with paddock.background(["/bin/sleep", word]) as process:
            paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
            process.send_signal(sig)
            assert process.wait(timeout=paddock.seconds(5)) == 128 + sig
        check_gone(word)


def test_signal_at_the_very_start_is_not_lost():
    word = new_word()
    for _ in range(5):
        process = subprocess.Popen(paddock.jail_argv(["/bin/sleep", word]), stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, env=paddock.clean_environment())
        try:
            time.sleep(0.001)
            process.terminate()
            status = process.wait(timeout=paddock.seconds(5))
            assert status in (128 + signal.SIGTERM, -signal.SIGTERM)
        finally:
            paddock.end(process)
    check_gone(word)


def test_killing_the_program_ends_the_sandbox():
    word = new_word()
    process = subprocess.Popen(paddock.jail_argv(["/bin/sleep", word]), stdin=subprocess.DEVNULL,
                               env=paddock.clean_environment())
    try:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
    finally:
        process.kill()
        process.wait()
    check_gone(word)


# Time-out


STUBBORN = {
    "plain": "sleep WORD",
    "ignored signals": "trap '' TERM INT HUP QUIT; sleep WORD & wait; sleep WORD",
    "own session": "setsid sleep WORD & sleep WORD",
    "double fork": "( ( setsid sleep WORD </dev/null >/dev/null 2>&1 & ) & ); sleep WORD",
    "stopped": "sleep WORD & kill -STOP $!; kill -STOP $$",
    "forks on": "while :; do sleep WORD & sleep 0.01; done",
    "closed streams": "exec </dev/null >/dev/null 2>&1; sleep WORD",
}


@pytest.mark.parametrize("name", STUBBORN)
def test_timeout_ends_the_whole_tree(name):
    word = new_word()
    limit = pause(0.4)
    start = time.monotonic()
    result = paddock.run(["/bin/bash", "-c", STUBBORN[name].replace("WORD", word)],
                         timeout=f"{int(limit * 1000)}ms")
    took = time.monotonic() - start
    assert not host.with_word(word), "nothing is left when the program returns"
    assert result.status == 124, result.explain()
    assert result.err.count("\n") == 1 and "--timeout" in result.err, result.explain()
    assert limit <= took < limit + paddock.seconds(2)


def test_timeout_that_is_not_reached_changes_nothing():
    result = paddock.run(["/bin/sh", "-c", "echo fine; exit 3"], timeout="1h")
    assert (result.status, result.out, result.err) == (3, "fine\n", "")


def test_output_before_the_timeout_arrives():
    result = paddock.run(["/bin/sh", "-c", "echo before; sleep 60"], timeout=f"{pause(1)}s")
    assert (result.status, result.out) == (124, "before\n")


def test_timeout_with_an_output_that_nobody_reads():
    """The reader never comes: that must not hold the end up."""
    near, far = os.pipe()
    start = time.monotonic()
    try:
        result = raw(["/usr/bin/yes"], stdout=far, timeout=f"{pause(0.4)}s")
    finally:
        os.close(near)
        os.close(far)
    assert result.returncode == 124
    assert time.monotonic() - start < pause(0.4) + paddock.seconds(3)


# Environment, directory, user


def test_environment_is_built_from_nothing():
    secret = {"SECRET_TOKEN": "s", "LD_PRELOAD": "", "BASH_ENV": "/x", "TERM": "xterm", "TZ": "X"}
    seen = dict(line.split("=", 1) for line in
                paddock.run_ok(["/usr/bin/env"], env=secret).out.splitlines())
    assert seen == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/user", "USER": "user", "SHELL": "/bin/bash", "LANG": "C.UTF-8"}


def test_env_adds_and_overrides():
    argv = [paddock.PADDOCK, "run", "--env", "A=1", "--env=B=two words=and more", "--env", "EMPTY=",
            "--env", "LANG=de_DE.UTF-8", "--env", "odd.name-1=x", "--env", "LINES=a\nb", "--",
            "/usr/bin/env", "-0"]
    out = subprocess.run(argv, stdout=subprocess.PIPE, check=True, stdin=subprocess.DEVNULL,
                         timeout=paddock.seconds(10), env=paddock.clean_environment()).stdout
    lines = out.decode().split("\0")
    for expected in ("A=1", "B=two words=and more", "EMPTY=", "LANG=de_DE.UTF-8", "odd.name-1=x",
                     "LINES=a\nb"):
        assert lines.count(expected) == 1, lines
    assert sum(line.startswith("LANG=") for line in lines) == 1


def test_the_last_of_two_values_counts_and_is_the_only_one():
    out = call("run", "--env", "A=1", "--env", "AB=2", "--env", "A=3", "--", "env").stdout
    assert sorted(v for v in out.splitlines() if v.startswith("A")) == ["A=3", "AB=2"]


def test_path_of_the_command_is_the_one_that_is_searched(tmp_path):
    program = tmp_path / "my-tool"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    result = paddock.run(["my-tool"], binds=[f"{tmp_path}:/opt/tools"],
                         env_in={"PATH": "/opt/tools:/bin"})
    assert (result.status, result.out) == (0, "mine\n"), result.explain()
    check_one_line(paddock.run(["my-tool"], binds=[f"{tmp_path}:/opt/tools"]), 127, "my-tool")


def test_workdir():
    assert paddock.run_ok(["pwd"]).out == "/workspace\n"
    assert paddock.run_ok(["pwd"], workdir="/tmp").out == "/tmp\n"
    check_one_line(paddock.run(["pwd"], workdir="/no/such"), 2, "/no/such")
    check_one_line(paddock.run(["pwd"], workdir="/etc/passwd"), 2, "/etc/passwd")
    check_one_line(paddock.run(["pwd"], workdir="tmp"), 2, "'tmp'", "absolute")


def test_workspace_and_home_are_the_users():
    line = "touch /workspace/a ~/b /tmp/c /dev/shm/d && ! touch /etc/x && ! touch /usr/x"
    assert raw(["/bin/sh", "-c", line]).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
@pytest.mark.parametrize("user,ids", [(None, "1000:1000"), ("user", "1000:1000"), ("root", "0:0"),
                                      ("0", "0:0"), ("1234", "1234:1234"), ("1234:5", "1234:5")])
def test_user(user, ids):
    result = paddock.run_ok(["/bin/sh", "-c", "echo $(id -u):$(id -g):$(id -G)"], user=user)
    assert result.out == f"{ids}:{ids.split(':')[1]}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_root_has_roots_home():
    assert paddock.run_ok(["/bin/sh", "-c", "echo $HOME $USER; touch ~/x"],
                          user="root").out == "/root root\n"


def test_no_network_but_loopback():
    assert paddock.run_ok(["/bin/sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1"]
                          ).out.split() == ["lo"]


def test_network_host_is_the_hosts():
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo reached"
        inside = paddock.run(["/bin/bash", "-c", line], network="host")
        assert inside.out == "reached\n", inside.explain()
        apart = paddock.run(["/bin/bash", "-c", line])
        assert apart.status != 0 and apart.out == "", apart.explain()


def test_host_name():
    assert paddock.run_ok(["uname", "-n"]).out == "sandbox\n"


# Isolation that was asked for


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_min_isolation():
    for rung in ("none", "basic", "full"):
        paddock.run_ok(["/bin/true"], min_isolation=rung)
    paddock.run_ok(["/bin/true"], min_isolation="basic", network="host")
    refused = paddock.run(["/bin/echo", "ran"], min_isolation="full", network="host")
    check_one_line(refused, 125, "full", "basic", "--network host")
    local = paddock.run(["/bin/echo", "ran"], min_isolation="basic", provider="local")
    check_one_line(local, 125, "local", "basic")


def test_options_end_where_the_command_begins():
    assert call("run", "echo", "--json", "-x", "--").stdout == "--json -x --\n"
    assert call("run", "--", "echo", "--", "a").stdout == "-- a\n"
    assert call("run", "--timeout=1m", "--env=A=b=c", "--", "sh", "-c", "echo $A").stdout == "b=c\n"


def test_it_is_its_own_keeper():
    """The builder is the only process besides those of the jail, and no terminal reaches it."""
    word = new_word()
    with paddock.background(["sleep", word]) as process:
        pid = paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        init = host.jail_init(pid[-1])
        assert host.parent(init) == process.pid
        outside = [p for p in host.descendants(process.pid)
                   if host.namespace(p, "pid") == host.namespace(os.getpid(), "pid") and not host.is_zombie(p)]
        assert len(outside) == 1 and os.getsid(outside[0]) == outside[0], outside
    check_gone(word)


def test_a_caller_that_ignores_its_children_is_answered():
    """Ignoring goes on through an exec, and then the kernel tells of no child's end."""
    done = subprocess.run(paddock.jail_argv(["/bin/sh", "-c", "exit 7"]), env=paddock.clean_environment(), check=False,
                          preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
                          timeout=paddock.seconds(30))
    assert done.returncode == 7


def test_long_command_lines_pass():
    argument = "x" * 100000
    assert len(raw(["/bin/echo", argument, "end"]).stdout) == 100005


def test_arguments_are_not_interpreted():
    odd = ["", " ", "a b", "$HOME", "*", "'", '"', "\\n", "\n", "é", "-e"]
    out = raw(["/usr/bin/printf", "<%s>", *odd]).stdout.decode()
    assert out == "".join(f"<{a}>" for a in odd)


# Identity


def test_every_sandbox_has_a_boot_id_of_its_own():
    read = ["/bin/cat", "/proc/sys/kernel/random/boot_id"]
    first, second = (raw(read).stdout.decode() for _ in range(2))
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        hosts = f.read()
    pattern = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n"
    assert re.fullmatch(pattern, first) and re.fullmatch(pattern, second)
    assert len({first, second, hosts}) == 3
    # It stays the same as long as the sandbox lives.
    twice = raw(["/bin/sh", "-c", f"{' '.join(read)} {read[1]}"]).stdout.decode().split()
    assert twice[0] == twice[1]
