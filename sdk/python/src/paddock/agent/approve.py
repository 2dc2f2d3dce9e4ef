"""Which calls need a word of the user, and what the user has allowed already.

How this works: reading never asks. Writing and running ask, until the user says "always" for that
kind of call, has allowed it by `--allow`, or lets everything in the sandbox pass (`--auto-approve`,
`/auto`). What leaves the sandbox asks every time: a link to one of its ports, a line for the memory.
On this machine (`--sandbox none`) reading outside the project asks, too, and there is no "always".

A command that is more than one simple command is only ever allowed as a whole: `pytest*` must not
allow `pytest; curl ...`.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Set

READS = {"read_file", "list_files", "search_files", "session_info", "read_skill"}
# The model started it itself.
HARMLESS = {"check_process", "stop_process"}
LEAVES = {"preview_port", "remember"}
COMMANDS = {"run_command", "start_process"}
# Whose first argument says what they do.
_TWO_WORDS = {"git", "npm", "npx", "yarn", "pnpm", "pip", "pip3", "cargo", "go", "make", "uv", "poetry", "docker",
              "python", "python3", "node", "bash", "sh", "env", "sudo", "xargs", "find"}
_OPERATORS = re.compile(r"[;&|`$()<>\n\r{}]")


class Question(NamedTuple):
    """Something that must be asked."""

    kind: str
    """What "always" would allow; "" when there is no always."""
    leaves: bool
    """It leaves the sandbox: asked even with --auto-approve."""


def is_simple(command: str) -> bool:
    """Is this one command, without anything that a shell would do beside running it?"""
    return not _OPERATORS.search(command)


def prefix_of(command: str) -> Optional[str]:
    """The words of a simple command that say what it is."""
    if not is_simple(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or "=" in words[0]:
        return None
    return " ".join(words[:2 if words[0] in _TWO_WORDS else 1])



class Approver:
    """What may happen without asking."""

    def __init__(self, *, auto: bool = False, allow: Sequence[str] = (), is_host: bool = False) -> None:
        self.auto = auto
        self._allow = list(allow)
        self._is_host = is_host
        self._always: Set[str] = set()

    def question(self, name: str, arguments: Mapping[str, Any], *, is_outside: bool = False) -> Optional[Question]:
        """What to ask before this call; None when it may be made. `is_outside`: its path is outside the project."""
        if name in LEAVES:
            return Question("", True)
        if name in HARMLESS or (name in READS and not (self._is_host and is_outside)):
            return None
        if self.auto or self._is_allowed(name, arguments):
            return None
        kind = self._kind(name, arguments)
        if kind in self._always:
            return None
        return Question("" if self._is_host else kind, False)

    def _is_allowed(self, name: str, arguments: Mapping[str, Any]) -> bool:
        command = arguments.get("command")
        if name not in COMMANDS or not isinstance(command, str):
            return False
        return any(pattern in ("*", command) or (is_simple(command) and fnmatch.fnmatchcase(command, pattern))
                   for pattern in self._allow)

    @staticmethod
    def _kind(name: str, arguments: Mapping[str, Any]) -> str:
        if name not in COMMANDS:
            return name
        command = str(arguments.get("command", ""))
        prefix = prefix_of(command)
        return f"{prefix} ..." if prefix else command

    def always(self, question: Question) -> None:
        """The user has said so."""
        if question.kind:
            self._always.add(question.kind)
