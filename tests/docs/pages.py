"""Plays the examples of a page: what follows a `$` is typed into one bash, and what the page shows
below must be what comes out.

An example is a block that is indented by four spaces. A line that ends with a backslash goes on in the
next one. In what is shown, `...` stands for anything, and numbers are compared only where a page
says nothing about them (`vague`).
"""

import contextlib
import os
import re
import subprocess
import threading
import time

from paddock_testing import run as paddock

SENTINEL = "=end-of-command="


class Example:
    def __init__(self, line, command, shown):
        self.line = line
        self.command = command
        self.shown = shown


def examples(text):
    """Every `$` command of a page with what is shown below it, in order."""
    found = []
    current = None
    goes_on = False
    for number, line in enumerate(text.splitlines(), 1):
        inside = line.startswith("    ")
        body = line[4:]
        if goes_on:
            current.command += "\n" + body
            goes_on = body.endswith("\\")
        elif inside and body.startswith("$ "):
            current = Example(number, body[2:], [])
            found.append(current)
            goes_on = body.endswith("\\")
        elif current and inside:
            current.shown.append(body)
        elif current and not line.strip() and current.shown:
            current.shown.append("")  # within a block, or its end
        elif line.strip():
            current = None
    for example in found:
        while example.shown and not example.shown[-1]:
            example.shown.pop()
    return found


def matches(shown, said, vague=False):
    """Is `said` what the page shows?"""
    if vague:
        # One line may be broken on the page; numbers are those of another machine.
        shown, said = ("".join(t.split()) for t in ("\n".join(shown), said))
        shown, said = (re.sub(r"\d+(\.\d+)?", "0", t) for t in (shown, said))
        return re.fullmatch(re.escape(shown).replace(re.escape("..."), ".*"), said) is not None
    pattern = re.escape("\n".join(line.rstrip() for line in shown)).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, "\n".join(l.rstrip() for l in said.splitlines()).strip()) is not None


class Shell:
    """One bash for a whole page: variables and functions of one example hold in the next."""

    def __init__(self, directory, env):
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=directory, env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True)
        self.lines = []
        self.news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append(line)
                self.news.notify_all()

    def run(self, command, limit=60):
        """(status, what it printed)"""
        # Nothing of the next command is this one's standard input.
        self.process.stdin.write(f"{{ {command}\n}} </dev/null\n__status=$?\n"
                                 f"echo; echo '{SENTINEL}' $__status\n")
        self.process.stdin.flush()
        deadline = time.monotonic() + paddock.seconds(limit)
        with self.news:
            # Something in the background may say more behind it.
            while not (ends := [n for n, line in enumerate(self.lines) if line.startswith(SENTINEL)]):
                left = deadline - time.monotonic()
                assert left > 0, f"not done after {limit} s: {command}\n{''.join(self.lines)}"
                assert self.process.poll() is None, f"the shell ended: {''.join(self.lines)}"
                self.news.wait(min(left, 1))
            said, end = self.lines[:ends[0]], self.lines[ends[0]]
            del self.lines[:ends[0] + 1]
        return int(end.split()[1]), "".join(said).removesuffix("\n")

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self.process.stdin.close()
