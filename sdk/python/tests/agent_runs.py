"""`paddock-agent` as a user has it: a process with a home of its own, with a terminal or without one.

Every wait has a deadline, and is for what the screen shows, never for a time.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from paddock_testing.run import seconds, wait_for

PROGRAM = str(Path(sys.executable).parent / "paddock-agent")
SECRET = "sk-secret-of-the-user"
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def environment(home, model, kind="anthropic", **more):
    """What the agent finds: the model's key, and where the sandboxes are."""
    passed = {name: os.environ[name] for name in os.environ if name.startswith(("PADDOCK_", "SANDBOX_"))}
    url = model if isinstance(model, str) else model.url
    keys = {"ANTHROPIC_API_KEY": SECRET, "ANTHROPIC_BASE_URL": url} if kind == "anthropic" else {
        "OPENAI_API_KEY": SECRET, "OPENAI_BASE_URL": url + "/v1"}
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm", **passed, **keys, **more}


def run(home, model, *arguments, kind="anthropic", stdin="", cwd=None, env=None, timeout=60):
    """A task without a terminal, to its end."""
    return subprocess.run([PROGRAM, *arguments], env={**environment(home, model, kind), **(env or {})}, input=stdin,
                          cwd=cwd or home, capture_output=True, text=True, timeout=seconds(timeout), check=False)


class Talk:
    """An agent in a terminal."""

    def __init__(self, home, model, *arguments, kind="anthropic", cwd=None, env=None):
        self.master, slave = pty.openpty()
        self.text = ""
        self.seen = 0
        try:
            # By setsid, not by a preexec_fn: this process has threads (the model's), and Python code between fork and
            # exec may wait for ever for a lock that one of them had.
            self.child = subprocess.Popen(
                ["setsid", "--ctty", PROGRAM, *arguments], env={**environment(home, model, kind), **(env or {})},
                cwd=cwd or home, stdin=slave, stdout=slave, stderr=slave)
        finally:
            os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self.child.wait(seconds(30))
        os.close(self.master)

    def _read(self, wait):
        if not select.select([self.master], [], [], wait)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False  # it has ended
        self.text += _STYLE.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
        return bool(data)

    def expect(self, pattern, timeout=30):
        """Waits until the screen shows this behind what was expected before; gives what was shown until then."""
        until = time.monotonic() + seconds(timeout)
        while True:
            found = re.compile(pattern).search(self.text, self.seen)
            if found:
                before, self.seen = self.text[self.seen:found.end()], found.end()
                return before
            assert time.monotonic() < until, f"no {pattern!r} behind {self.text[:self.seen][-200:]!r}: " \
                                             f"{self.text[self.seen:]!r}"
            if not self._read(0.1) and self.child.poll() is not None:
                while self._read(0.1):
                    pass
                found = re.compile(pattern).search(self.text, self.seen)
                assert found, f"it ended with {self.child.returncode}, without {pattern!r}: {self.text[-2000:]!r}"

    def send(self, line):
        """Types a line."""
        os.write(self.master, line.encode() + b"\n")

    def press(self, keys):
        """Types keys as they are."""
        os.write(self.master, keys)

    def prompt(self):
        """Waits for the prompt, and until a key is waited for; gives what was shown before it."""
        return self.asked(r"(?m)^(auto)?> $")

    def asked(self, pattern):
        """Waits until the screen shows this and a key is waited for; gives what `expect` gives. Python hears of a
        Ctrl-C between the two only with the next key."""
        before = self.expect(pattern)
        wait_for(self._sleeps, 30, "it waits for a key")
        return before

    def _sleeps(self):
        stat = Path(f"/proc/{self.child.pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[0] == "S"

    def end(self, timeout=30):
        """Waits for its end; gives the status. What it still writes is read meanwhile."""
        until = time.monotonic() + seconds(timeout)
        while self.child.poll() is None:
            assert time.monotonic() < until, f"it does not end: {self.text[-1000:]!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.child.returncode
