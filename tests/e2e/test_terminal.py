"""`paddock run` on a terminal behaves as the command would: size, keys, job control, modes."""

import os
import signal
import subprocess
import termios

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import Terminal, check_gone, new_word, pause

PROMPT = rb"ready> "
BASH = ["/bin/bash", "--norc", "--noediting", "-i"]
SET_PROMPT = {"PS1": "ready> "}


def test_all_three_streams_are_one_terminal():
    with Terminal.run(["/bin/sh", "-c", "tty; tty <&1; tty <&2; test -t 0 -a -t 1 -a -t 2"]) as t:
        assert t.wait() == 0
        names = t.seen.split()
        assert len(names) == 3 and len(set(names)) == 1, t.seen
        assert names[0].startswith(b"/dev/pts/"), t.seen


def test_the_terminal_can_be_opened_by_its_names():
    line = 'echo one >"$(tty)" && echo two >/dev/tty && ls -l "$(tty)" | cut -c1'
    with Terminal.run(["/bin/sh", "-c", line]) as t:
        assert t.wait() == 0
        assert t.seen == b"one\r\ntwo\r\nc\r\n"


def test_it_is_not_the_hosts_terminal():
    with Terminal.run(["/bin/sh", "-c", "stat -c %d:%i $(tty); sleep 0.2"]) as t:
        assert t.wait() == 0
        mine = os.stat(os.ttyname(t.slave))
        assert t.seen.strip().decode() != f"{mine.st_dev}:{mine.st_ino}"


def test_window_size_and_its_changes():
    line = "trap 'stty size; exit' WINCH; stty size; echo wait; while :; do sleep 0.05; done"
    with Terminal.run(["/bin/bash", "-c", line], rows=33, columns=101) as t:
        t.expect(rb"33 101\r\nwait\r\n")
        t.resize(50, 132)
        t.expect(rb"50 132\r\n")
        assert t.wait() == 0


def test_keys_and_echo():
    with Terminal.run(["/bin/sh", "-c", "read a; echo got:$a"]) as t:
        paddock.wait_for(t.is_raw, 5, "the outer terminal is raw")
        t.send(b"hellp\x7fo\r")
        t.expect(rb"got:hello\r\n")
        assert t.wait() == 0


def test_end_of_file_key():
    with Terminal.run(["/bin/cat"]) as t:
        paddock.wait_for(t.is_raw, 5, "the outer terminal is raw")
        t.send(b"line\r")
        t.expect(rb"line\r\nline\r\n")
        t.send(b"\x04")
        assert t.wait() == 0


def test_ctrl_c_ends_the_command():
    word = new_word()
    with Terminal.run(["/bin/sleep", word]) as t:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        t.send(b"\x03")
        assert t.wait() == 128 + signal.SIGINT
        t.check_restored()
    check_gone(word)


def test_ctrl_c_can_be_caught():
    with Terminal.run(["/bin/bash", "-c", "trap 'echo caught; exit 7' INT; echo ready; "
                       "while :; do sleep 0.05; done"]) as t:
        t.expect(rb"ready")
        t.send(b"\x03")
        t.expect(rb"caught\r\n")
        assert t.wait() == 7


def test_ctrl_backslash_ends_the_command():
    word = new_word()
    with Terminal.run(["/bin/sleep", word]) as t:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        t.send(b"\x1c")
        assert t.wait() == 128 + signal.SIGQUIT


def await_foreground(word):
    """The key goes to whoever is in the foreground: that is the shell until it has handed it over."""
    def is_there():
        for pid in host.with_word(word):
            state, _, group, _, _, foreground = host.read_proc(pid, "stat").rsplit(")", 1)[1].split()[:6]
            return group == foreground and state == "S"
        return False
    paddock.wait_for(is_there, 10, f"sleep {word} is in the foreground")


def test_ctrl_c_reaches_only_the_shells_child():
    """In an interactive shell the key ends what is in the foreground, not the shell."""
    with Terminal.run(BASH, env_in=SET_PROMPT) as t:
        t.expect(PROMPT)
        word = new_word()
        t.send(f"sleep {word}\r".encode())
        await_foreground(word)
        t.send(b"\x03")
        t.expect(PROMPT)
        t.send(b"echo status=$?; exit 4\r")
        t.expect(rb"status=130\r\n")
        assert t.wait() == 4


def test_job_control():
    with Terminal.run(BASH, env_in=SET_PROMPT) as t:
        t.expect(PROMPT)
        assert b"job control" not in t.seen
        word = new_word()
        job = f"sleep {word}".encode()
        t.send(job + b"\r")
        await_foreground(word)
        t.send(b"\x1a")
        t.expect(rb"Stopped +" + job)
        t.expect(PROMPT)
        t.send(b"bg\r")
        t.expect(job + rb" &\r\n")
        t.expect(PROMPT)
        t.send(b"jobs\r")
        t.expect(rb"Running +" + job)
        t.expect(PROMPT)
        t.send(b"fg\r")
        t.expect(job + rb"\r\n")
        await_foreground(word)
        t.send(b"\x03")
        t.expect(PROMPT)
        t.send(b"exit 0\r")
        assert t.wait() == 0


def test_a_command_may_make_its_terminal_raw():
    with Terminal.run(["/bin/sh", "-c", "stty raw -echo; echo go; dd bs=1 count=3 2>/dev/null | "
                       "od -An -tx1"]) as t:
        t.expect(rb"go")
        t.send(b"\x03\r\x04")
        t.expect(rb"03 0d 04")
        assert t.wait() == 0
        t.check_restored()


def test_colours_and_odd_bytes_pass():
    with Terminal.run(["/usr/bin/printf", r"\033[31mred\033[0m \000\001\377 €"]) as t:
        assert t.wait() == 0
        assert t.seen == b"\x1b[31mred\x1b[0m \x00\x01\xff " + "€".encode()


def test_ls_shows_colours_as_on_any_terminal():
    with Terminal.run(["/bin/ls", "--color=auto", "-d", "/usr"]) as t:
        assert t.wait() == 0
        assert b"\x1b[" in t.seen


def test_term_is_the_callers():
    with Terminal.run(["/bin/sh", "-c", "echo $TERM"]) as t:
        assert t.wait() == 0
        assert t.seen == b"xterm-256color\r\n"


def test_term_can_be_overridden():
    with Terminal.run(["/usr/bin/env"], env_in={"TERM": "vt100"}) as t:
        assert t.wait() == 0
        assert [line for line in t.seen.split() if line.startswith(b"TERM=")] == [b"TERM=vt100"]


def test_a_lot_of_output_arrives_whole():
    count = paddock.scaled_down(100000, 10000)
    with Terminal.run(["/usr/bin/seq", count]) as t:
        assert t.wait(limit=20) == 0
        lines = t.seen.split(b"\r\n")
        assert lines[:-1] == [b"%d" % n for n in range(1, count + 1)]


def test_modes_are_restored_after_a_normal_end():
    with Terminal.run(["/bin/sh", "-c", "echo go; read a; exit 3"]) as t:
        t.expect(rb"go")
        paddock.wait_for(t.is_raw, 5, "the outer terminal is raw")
        t.send(b"\r")
        assert t.wait() == 3
        t.check_restored()


def test_modes_are_restored_after_a_timeout():
    with Terminal.run(["/bin/sh", "-c", "stty raw; sleep 60"], timeout=f"{pause(0.4)}s") as t:
        assert t.wait() == 124
        t.check_restored()
        assert b"--timeout" in t.seen and t.seen.endswith(b"\r\n"), t.seen


@pytest.mark.parametrize("sig", ["TERM", "HUP", "INT"])
def test_modes_are_restored_after_a_signal(sig):
    with Terminal.run(["/bin/sleep", "60"]) as t:
        paddock.wait_for(t.is_raw, 5, "the outer terminal is raw")
        t.process.send_signal(getattr(signal, f"SIG{sig}"))
        assert t.wait() == 128 + getattr(signal, f"SIG{sig}")
        t.check_restored()


def test_modes_are_restored_when_the_command_is_killed():
    with Terminal.run(["/bin/sh", "-c", "kill -9 $$"]) as t:
        assert t.wait() == 137
        t.check_restored()


def test_modes_are_restored_when_the_command_is_not_found():
    with Terminal.run(["no-such-command"]) as t:
        assert t.wait() == 127
        assert t.seen.count(b"\n") == 1 and b"no-such-command" in t.seen
        t.check_restored()


def test_modes_are_restored_when_init_is_killed():
    word = new_word()
    with Terminal.run(["/bin/sleep", word]) as t:
        pid = paddock.wait_for(lambda: host.with_word(word), 5, "it runs")[0]
        paddock.wait_for(t.is_raw, 5, "the outer terminal is raw")
        os.kill(host.jail_init(pid), signal.SIGKILL)
        assert t.wait() == 125
        t.check_restored()


def test_a_terminal_that_goes_away_ends_the_command():
    """The window is closed: SIGHUP, as for any program in it."""
    word = new_word()
    t = Terminal.run(["/bin/sleep", word])
    try:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        os.close(t.slave)
        os.close(t.master)
        t.process.wait(timeout=paddock.seconds(5))
        check_gone(word)
    finally:
        paddock.end(t.process)


def test_piped_output_gets_no_terminal():
    """`paddock run -- ls | cat`: what is written is not for a terminal, though stdin is one."""
    with Terminal.run(["/bin/sh", "-c", "test -t 1 && echo tty || echo pipe"],
                      stdout=subprocess.PIPE) as t:
        assert t.process.stdout.read() == b"pipe\n"
        assert t.wait() == 0
        t.check_restored()


def test_json_takes_no_terminal():
    with Terminal.run(["/usr/bin/tty"], json_record=True) as t:
        assert t.wait() == 1
        assert b'"stdout":"not a tty\\n"' in t.seen


def test_ctrl_c_ends_a_command_whose_output_is_piped():
    word = new_word()
    with Terminal.run(["/bin/sleep", word], stdout=subprocess.PIPE) as t:
        paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        assert t.modes()[3] & termios.ISIG
        t.send(b"\x03")
        assert t.wait() == 128 + signal.SIGINT
    check_gone(word)


def test_background_child_does_not_hold_the_terminal():
    word = new_word()
    with Terminal.run(["/bin/sh", "-c", f"sleep {word} & echo started"]) as t:
        assert t.wait(limit=4) == 0
        assert t.seen == b"started\r\n"
        t.check_restored()
    check_gone(word)


def test_programs_inside_can_make_terminals_of_their_own():
    line = ("import pty, os; pid, fd = pty.fork();"
            "pid or os.execvp('tty', ['tty']); print(os.read(fd, 100).decode(), end='')")
    result = paddock.run(["/usr/bin/python3", "-c", line])
    assert result.status == 0 and result.out.startswith("/dev/pts/"), result.explain()
