"""The terminal: what the user sees and types.

How this works: everything that is not ours goes through `text.plain`. With a terminal, lines are read
by readline, which has the history, and for which Ctrl-T and Shift-Tab type `/auto`. Without one nobody
can be asked, and a question is answered with no. `--json` writes events as lines to standard output
instead, and `-p` only the answer: everything else is then on standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional, TextIO

from .text import one_line, plain
from .waiting import Waiter

SHOWN_BYTES = 16 * 1024  # of one command's output
ARGUMENT_LINES = 100

_STYLES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def is_terminal(stream: Optional[TextIO]) -> bool:
    """Also of a stream that was closed before the program was started."""
    return stream is not None and stream.isatty()


class Screen:
    """One per program."""

    def __init__(self, waiter: Waiter, *, as_json: bool = False, only_answer: bool = False) -> None:
        self._waiter = waiter
        self._json = as_json
        self._only_answer = only_answer
        self._out: TextIO = sys.stderr if as_json or only_answer else sys.stdout
        self.can_ask = is_terminal(sys.stdin) and is_terminal(sys.stderr) and not as_json
        self._colours = is_terminal(self._out)
        self._shown = 0
        self._at_start = True

    # ---- writing ----

    def _put(self, text: str, to: Optional[TextIO] = None) -> None:
        if not text:
            return
        out = to or self._out
        out.write(text.encode(out.encoding or "utf-8", "replace").decode(out.encoding or "utf-8", "replace"))
        out.flush()
        self._at_start = text.endswith("\n")

    def _styled(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colours and style else text

    def say(self, text: str, style: str = "") -> None:
        """A line of ours."""
        self.end_line()
        self._put(self._styled(plain(text), style) + "\n")

    def warn(self, text: str) -> None:
        """Something that the user should see."""
        self.event("notice", text=text)
        self.say(text, "yellow")

    def fail(self, text: str) -> None:
        """Something that went wrong."""
        self.event("error", text=text)
        self.say(f"paddock-agent: {text}", "red")

    def end_line(self) -> None:
        """The next text begins a line."""
        if not self._at_start:
            self._put("\n")

    def event(self, kind: str, **fields: Any) -> None:
        """A line of `--json`."""
        if self._json:
            sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
            sys.stdout.flush()

    def foreign(self, piece: str) -> None:
        """Text of others, all of it."""
        self._put(plain(piece))

    def model(self, piece: str) -> None:
        """Text of the model, as it comes."""
        if not self._only_answer:
            self.foreign(piece)

    def answer(self, text: str) -> None:
        """The last answer of a task."""
        self.event("answer", text=text)
        if self._only_answer and not self._json:
            self._put(plain(text).rstrip("\n") + "\n", sys.stdout)

    def call(self, name: str, arguments: Dict[str, Any]) -> None:
        """A tool is about to be called."""
        self.event("call", name=name, arguments=arguments)
        self._shown = 0
        self.say(f"> {name} {describe(name, arguments)}", "cyan")

    def output(self, piece: str) -> None:
        """What a command writes while it runs: the beginning of it."""
        if self._shown > SHOWN_BYTES:
            return
        self._shown += len(piece)
        self._put(self._styled(plain(piece[:SHOWN_BYTES]), "dim"))
        if self._shown > SHOWN_BYTES:
            self.say("[... more is not shown ...]", "dim")

    def result(self, text: str, is_error: bool) -> None:
        """What the model is told. Shown are errors, and what has not been seen yet."""
        self.event("result", text=text, is_error=is_error)
        if is_error:
            self.say(one_line(text, 500), "red")
        elif self._shown == 0:
            self.say(one_line(text, 200), "dim")
        else:
            self.say(one_line(text[-200:].rpartition("\n")[2]), "dim")

    # ---- reading ----

    def prepare(self, history: Path) -> None:
        """Makes lines editable, with the history of earlier times."""
        if not self.can_ask:
            return
        try:
            import readline
        except ImportError:
            return
        readline.set_history_length(1000)
        try:
            readline.read_history_file(str(history))
        except OSError:
            pass  # the first time
        for key in (r"\C-t", r"\e[Z"):
            readline.parse_and_bind(rf'"{key}": "\C-a\C-k/auto\C-m"')

    def keep_history(self, history: Path) -> None:
        """Keeps the lines for the next time."""
        if not self.can_ask:
            return
        try:
            import readline

            history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(str(history))
        except (ImportError, OSError):
            pass  # it is only a comfort

    def read(self, prompt: str) -> str:
        """A line of the user. Raises EOFError and KeyboardInterrupt."""
        self.end_line()
        self._at_start = True
        if is_terminal(sys.stdout):
            return self._waiter.read(lambda: input(prompt))
        # input() would write the prompt to where the answer goes.
        self._put(prompt)
        line: str = self._waiter.read(sys.stdin.readline)
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def ask(self, question: str, explain: Callable[[], str]) -> str:
        """Shows what it is about, and gives the user's word: "y" ... Raises as `read`."""
        text = explain()
        if text:
            self.say(text)
        return self.read(question).strip()


def describe(name: str, arguments: Dict[str, Any]) -> str:
    """What a call is about, in a line."""
    for key in ("command", "path", "pattern", "pid", "port", "name", "text", "language"):
        if key in arguments:
            return one_line(str(arguments[key]), 300)
    return one_line(json.dumps(arguments), 300) if arguments else ""


def whole_call(name: str, arguments: Dict[str, Any]) -> str:
    """All of what the user is asked about; a long text is cut, and says so."""
    lines = []
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        rows = text.splitlines() or [""]
        if len(rows) == 1:
            lines.append(f"  {key}: {rows[0]}")
            continue
        lines.append(f"  {key}:")
        lines += [f"    {row}" for row in rows[:ARGUMENT_LINES]]
        if len(rows) > ARGUMENT_LINES:
            lines.append(f"    [... {len(rows) - ARGUMENT_LINES} more lines ...]")
    return "\n".join(lines)
