"""What the end-to-end tests share beyond paddock_testing: raw bytes, words, a terminal."""

import contextlib
import errno
import fcntl
import os
import pty
import random
import re
import select
import struct
import subprocess
import termios
import time

from paddock_testing import host
from paddock_testing import run as paddock

ROOT_ONLY = "needs root"


def pause(s):
    """A time that passes inside a test, longer where programs start slowly, but not twenty times:
    unlike a bound it is always waited for."""
    return s * min(5, max(paddock.SLOW, paddock.PATIENCE))


def new_word():
    """An argument for sleep(1) that no other process has."""
    return f"{random.randrange(5000, 9000)}.{random.randrange(10**8, 10**9)}"


def check_gone(word, limit=3):
    paddock.wait_for(lambda: not host.with_word(word), limit, f"no process has {word}")


def raw(command, *, stdin=None, limit=20, env=None, binary=None, stdout=subprocess.PIPE, **options):
    """`paddock run` with bytes in and out; returns subprocess's own result."""
    argv = paddock.jail_argv(command, binary=binary, **options)
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin or subprocess.DEVNULL}
    return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, check=False,
                          timeout=paddock.seconds(limit), env=paddock.clean_environment(env),
                          **given)


def call(*arguments, limit=20, env=None, **options):
    """The program with exactly these arguments."""
    return subprocess.run([paddock.PADDOCK, *map(str, arguments)], capture_output=True, text=True,
                          check=False, timeout=paddock.seconds(limit), stdin=subprocess.DEVNULL,
                          env=paddock.clean_environment(env), **options)


def check_one_line(result, status, *words):
    """A refusal: the status, nothing on stdout, one line on stderr with every word in it."""
    err = result.err if hasattr(result, "err") else result.stderr
    out = result.out if hasattr(result, "out") else result.stdout
    code = result.status if hasattr(result, "status") else result.returncode
    assert code == status, (code, err)
    assert out == ""
    assert err.startswith("paddock: ") and err.count("\n") == 1 and err.endswith("\n"), err
    for word in words:
        assert word in err, f"{word!r} is not in {err!r}"


def read_line(process, limit=8):
    """One line of a process's output, byte by byte so that nothing behind it is taken, or b"" at
    the end. Never waits longer than the limit: nobody else would end the test."""
    fd = process.stdout.fileno()
    deadline = time.monotonic() + paddock.seconds(limit)
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        assert left > 0 and select.select([fd], [], [], left)[0], f"no line, only {line!r}"
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return line


class Terminal:
    """A process whose controlling terminal is a pseudo terminal that the test holds."""

    def __init__(self, argv, *, rows=24, columns=80, env=None, stdout=None):
        self.master, self.slave = pty.openpty()
        self.seen = b""
        self.resize(rows, columns, tell=False)
        self.modes_before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            argv, stdin=self.slave, stdout=self.slave if stdout is None else stdout,
            stderr=self.slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=paddock.clean_environment({"TERM": "xterm-256color", **(env or {})}))

    @classmethod
    def run(cls, command, *, rows=24, columns=80, env=None, stdout=None, **options):
        return cls(paddock.jail_argv(command, **options), rows=rows, columns=columns, env=env,
                   stdout=stdout)

    def resize(self, rows, columns, tell=True):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master if tell else self.slave, termios.TIOCSWINSZ, size)

    def send(self, data):
        os.write(self.master, data)

    def read_some(self, wait):
        if not select.select([self.master], [], [], wait)[0]:
            return
        with contextlib.suppress(OSError):
            self.seen += os.read(self.master, 65536)

    def expect(self, pattern, limit=8):
        """Reads until the pattern (bytes, a regular expression) shows; forgets what came before its
        end."""
        deadline = time.monotonic() + paddock.seconds(limit)
        while True:
            found = re.search(pattern, self.seen)
            if found:
                self.seen = self.seen[found.end():]
                return found
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen[-2000:]!r}"
            self.read_some(0.05)

    def wait(self, limit=8):
        """The exit status; everything written until then is in `seen`."""
        deadline = time.monotonic() + paddock.seconds(limit)
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still runs; {self.seen[-2000:]!r}"
            self.read_some(0.02)
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.seen += os.read(self.master, 65536)
            except OSError as error:
                assert error.errno == errno.EIO
                break
        return self.process.returncode

    def modes(self):
        return termios.tcgetattr(self.slave)

    def is_raw(self):
        return not self.modes()[3] & (termios.ICANON | termios.ECHO)

    def check_restored(self):
        assert self.modes() == self.modes_before, "the terminal's modes are not as they were"

    def close(self):
        paddock.end(self.process)
        os.close(self.master)
        os.close(self.slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
