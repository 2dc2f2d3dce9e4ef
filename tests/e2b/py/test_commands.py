"""Commands and terminals by the sync SDK."""

import threading
import time

import e2b
import pytest


def test_a_result_has_both_streams_and_the_exit_code(sandbox):
    seen = []
    result = sandbox.commands.run("echo out; echo err >&2", on_stdout=seen.append,
                                  on_stderr=seen.append)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")
    assert sorted(seen) == ["err\n", "out\n"]
    with pytest.raises(e2b.CommandExitException) as caught:
        sandbox.commands.run("echo before; exit 37")
    assert caught.value.exit_code == 37
    assert caught.value.stdout == "before\n"


def test_user_directory_and_variables(make):
    sandbox = make(envs={"A": "of the sandbox", "B": "of the sandbox"})
    result = sandbox.commands.run('id -un; pwd; echo "$A, $B"', cwd="/tmp", envs={"B": "mine"})
    assert result.stdout == "user\n/tmp\nof the sandbox, mine\n"
    assert sandbox.commands.run("id -u; pwd", user="root").stdout == "0\n/root\n"
    with pytest.raises(e2b.InvalidArgumentException):
        sandbox.commands.run("pwd", cwd="/is/not/there")
    with pytest.raises(e2b.AuthenticationException):
        sandbox.commands.run("true", user="nobody-here")


def test_standard_input(sandbox):
    command = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "one\n")
    sandbox.commands.send_stdin(command.pid, "two ä €\n")
    sandbox.commands.close_stdin(command.pid)
    assert command.wait().stdout == "one\ntwo ä €\nend\n"


@pytest.mark.since("AsyncCommandInputHandle")
def test_standard_input_as_a_stream(sandbox):
    command = sandbox.commands.run("cat", background=True, stdin=True)

    def parts():
        for number in range(20):
            time.sleep(0.01)
            yield f"part {number}\n"

    sandbox.commands.stream_input(command.pid, parts())
    sandbox.commands.close_stdin(command.pid)
    assert command.wait().stdout == "".join(f"part {n}\n" for n in range(20))
    with pytest.raises(e2b.NotFoundException):
        sandbox.commands.stream_input(999999, ["x"])


def test_list_kill_and_connect(sandbox):
    command = sandbox.commands.run("sleep 1000", background=True, envs={"MARK": "x"}, cwd="/tmp")
    found = [p for p in sandbox.commands.list() if p.pid == command.pid]
    assert len(found) == 1
    assert found[0].cmd == "/bin/bash" and found[0].args == ["-l", "-c", "sleep 1000"]
    assert found[0].envs["MARK"] == "x" and found[0].cwd == "/tmp"
    command.disconnect()
    again = sandbox.commands.connect(command.pid)
    assert again.pid == command.pid
    assert sandbox.commands.kill(command.pid) is True
    with pytest.raises(e2b.CommandExitException):
        again.wait()
    assert sandbox.commands.kill(command.pid) is False
    with pytest.raises(e2b.NotFoundException):
        sandbox.commands.connect(999999)


def test_a_time_out_ends_the_whole_tree(sandbox, until):
    with pytest.raises(e2b.TimeoutException):
        sandbox.commands.run("sleep 4731 & (setsid sleep 4732 &) ; sleep 4733", timeout=1)
    until("no sleep is left", lambda: sandbox.commands.run(
        'pgrep -u "$(id -u)" -x sleep || echo none').stdout == "none\n")


def test_large_output_and_bytes_that_are_no_text(sandbox):
    result = sandbox.commands.run(
        "head -c 10000000 /dev/zero | tr '\\0' o & head -c 10000000 /dev/zero | tr '\\0' e >&2;"
        " wait")
    assert result.stdout == "o" * 10_000_000
    assert result.stderr == "e" * 10_000_000
    odd = sandbox.commands.run("printf 'a\\377b'").stdout
    assert odd.startswith("a") and odd.endswith("b")


def test_a_sandbox_that_is_killed_ends_what_waits_in_it(make):
    sandbox = make()
    begun = threading.Event()

    def kill():
        begun.wait(60)
        e2b.Sandbox.kill(sandbox.sandbox_id)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(e2b.TimeoutException):
        sandbox.commands.run("echo begun; sleep 1000", on_stdout=lambda _: begun.set())
    killer.join()
    assert begun.is_set()


def test_a_terminal(sandbox):
    terminal = sandbox.pty.create(e2b.PtySize(rows=24, cols=80), envs={"ABC": "x-123"}, cwd="/tmp")
    sandbox.pty.resize(terminal.pid, e2b.PtySize(rows=31, cols=101))
    sandbox.pty.send_stdin(terminal.pid, b'echo "<$ABC|$PWD>"; stty size; exit 0\n')
    shown = []
    result = terminal.wait(on_pty=shown.append)
    assert result.exit_code == 0
    text = b"".join(shown).decode()
    assert "<x-123|/tmp>" in text and "31 101" in text


def test_a_terminal_that_is_left_and_found_again(sandbox):
    terminal = sandbox.pty.create(e2b.PtySize(rows=24, cols=80))
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    assert again.pid == terminal.pid
    assert sandbox.pty.kill(terminal.pid) is True
    assert sandbox.pty.kill(terminal.pid) is False
