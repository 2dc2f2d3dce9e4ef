"""`paddock code`: cells from a file, from standard input and from a prompt."""

import errno
import json
import os
import pty
import select
import time

import pytest

from paddock_testing import run as paddock
from test_cli import Cli

PICTURE = b"class P:\n    def _repr_png_(self): return b'abcd'\n    def __repr__(self): return 'P'\nP()"


@pytest.fixture
def cli(api):
    return Cli(api)


class Prompt:
    """`paddock code` in a terminal."""

    def __init__(self, cli, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execve(paddock.PADDOCK, [paddock.PADDOCK, "code", *arguments], cli.env)
            finally:
                os._exit(1)
        self.seen = ""

    def until(self, text, limit=20):
        """What was written up to this text."""
        end = time.monotonic() + paddock.seconds(limit)
        while text not in self.seen:
            assert time.monotonic() < end, f"in vain waited for {text!r} in {self.seen!r}"
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    self.seen += os.read(self.fd, 4096).decode()
                except OSError as error:
                    assert error.errno == errno.EIO and text in self.seen, self.seen
        said, _, self.seen = self.seen.partition(text)
        return said

    def type(self, text):
        os.write(self.fd, text.encode())

    def status(self):
        end = time.monotonic() + paddock.seconds(20)
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, "it does not end"
            time.sleep(0.02)


def test_a_file_and_standard_input_share_variables(cli, sandbox, tmp_path):
    cell = tmp_path / "cell.py"
    cell.write_text("x = 41\nprint('hello')\nx + 1")
    assert cli.out("code", sandbox, cell) == "hello\n42\n"
    assert cli.out("code", sandbox, "-", stdin=b"x") == "41\n"
    assert cli.out("code", sandbox, stdin=b"import os; os.getenv('A')") == ""
    assert cli.out("code", "-e", "A=1", sandbox, stdin=b"os.getenv('A')") == "1\n"


def test_an_exception_is_status_1_and_a_time_out_124(cli, sandbox):
    result = cli("code", sandbox, stdin=b"print('before')\n1 / 0")
    assert result.returncode == 1 and result.stdout == b"before\n"
    assert result.stderr.endswith(b"ZeroDivisionError: division by zero\n")
    late = cli("code", "--timeout", "300ms", sandbox, stdin=b"import time; time.sleep(600)")
    assert late.returncode == 124 and b"KeyboardInterrupt" in late.stderr
    died = cli("code", sandbox, stdin=b"import os; os._exit(3)")
    assert died.returncode == 1 and b"status 3" in died.stderr and b"variables are gone" in died.stderr


def test_pictures_are_named_and_saved(cli, sandbox, tmp_path):
    assert cli.out("code", sandbox, stdin=PICTURE) == "P\n[picture: png; --save DIR keeps it]\n"
    said = cli.out("code", "--save", tmp_path, sandbox, stdin=b"P()")
    assert said == f"P\n[picture: {tmp_path}/cell-2-1.png]\n"
    assert (tmp_path / "cell-2-1.png").read_bytes() == b"abcd"
    missing = cli("code", "--save", tmp_path / "no", sandbox, stdin=b"P()")
    assert missing.returncode == 125 and b"no/cell-3-1.png" in missing.stderr


def test_json(cli, sandbox):
    told = json.loads(cli.out("code", "--json", sandbox, stdin=b"6 * 7"))
    assert told["results"][0]["text"] == "42" and told["error"] is None
    failed = cli("code", "--json", sandbox, stdin=b"missing")
    assert failed.returncode == 1 and json.loads(failed.stdout)["error"]["name"] == "NameError"


def test_what_is_wrong_is_named(cli, sandbox, tmp_path):
    for arguments, status, word in (
            ([], 2, "which sandbox"), (["bad"], 2, "bad"), ([sandbox, "a", "b"], 2, "one FILE"),
            (["--colour", sandbox], 2, "--colour"), ([sandbox, tmp_path / "none.py"], 125, "none.py"),
            (["--language", "bash", "--context", "c", sandbox], 2, "--context"),
            (["--context", "nonesuch", sandbox], 125, "nonesuch")):
        result = cli("code", *arguments, stdin=b"1")
        assert result.returncode == status and word in result.stderr.decode(), (arguments, result)
    large = cli("code", sandbox, stdin=b"#" * ((1 << 20) + 1))
    assert large.returncode == 2 or large.returncode == 125
    assert "1048576" in large.stderr.decode()


def test_a_prompt(cli, sandbox):
    prompt = Prompt(cli, sandbox)
    prompt.until(">>> ")
    prompt.type("a = 5\n")
    prompt.until(">>> ")
    prompt.type("for i in range(2):\n")
    prompt.until("... ")
    prompt.type("    print('line', i)\n")
    prompt.until("... ")
    prompt.type("\n")
    assert "line 0\r\nline 1\r\n" in prompt.until(">>> ")
    prompt.type("import time; print('be' + 'gun'); time.sleep(600)\n")
    prompt.until("begun\r\n")
    prompt.type("\x03")
    assert "KeyboardInterrupt" in prompt.until(">>> ")
    prompt.type("a + 1\n")
    assert "6\r\n" in prompt.until(">>> ")
    prompt.type("half of a line\x03")
    prompt.until(">>> ")
    prompt.type("\x04")
    assert prompt.status() == 0
    assert cli.out("code", sandbox, stdin=b"a") == "5\n"
