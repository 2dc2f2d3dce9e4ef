"""What the tools are made of: a table of them, what they answer, and how errors are told to a model.

How this works: a tool is a function of the session and of its arguments, a pydantic model, and stands
in the table by `@tool`. It gives an `Answer`, raises `Refusal` with a text for the model, or lets an
error of the package pass, which becomes such a text. Nothing here knows LangChain; `__init__` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Type, TypeVar

from pydantic import BaseModel

from ..errors import PaddockError
from ..models import ExecResult
from ..session import SandboxSession

A = TypeVar("A", bound=BaseModel)
C = TypeVar("C", bound=Callable[..., "Answer"])

NO_NETWORK = (
    "This cannot be reached: a sandbox has no network, but for what its rules let through. Trying again "
    "does not change that. "
    "Use what is installed or in /workspace already; http://127.0.0.1:PORT reaches programs that run "
    "in the sandbox.")

_NETWORK = re.compile(
    r"could not resolve host|temporary failure in name resolution|name or service not known"
    r"|network is unreachable|no route to host|failed to establish a new connection"
    r"|nodename nor servname|ERR_NAME_NOT_RESOLVED|ERR_INTERNET_DISCONNECTED"
    r"|ERR_ADDRESS_UNREACHABLE|EAI_AGAIN|suitable TLS CA certificate|could not find a version that satisfies", re.IGNORECASE)

_HINTS = {
    "not_found": "check the path with file_list",
    "denied": "choose a path below /workspace or /tmp",
    "no_command": "the program is not installed in the sandbox",
    "not_executable": "make the file executable, or run it with its interpreter",
    "policy": "this sandbox does not allow that command; find another way",
    "no_space": "remove files that are not needed",
    "too_large": "write less at once",
    "timeout": "try again, or allow more time",
    "command_timeout": "allow more time, or run it in a terminal with shell_interactive",
}


@dataclass
class Answer:
    """What a tool says to the model, and the same for programs."""

    text: str
    data: Dict[str, object] = field(default_factory=dict)


class Refusal(Exception):
    """A tool could not do it; the text tells the model why, and what to do."""


@dataclass(frozen=True)
class Spec:
    """A tool of the table."""

    name: str
    description: str
    schema: Type[BaseModel]
    call: Callable[[SandboxSession, Any], Answer]


TABLE: Dict[str, Spec] = {}


def tool(name: str, schema: Type[BaseModel], description: str) -> Callable[[C], C]:
    """Puts a function into the table."""
    def add(call: C) -> C:
        TABLE[name] = Spec(name, " ".join(description.split()), schema, call)
        return call
    return add


def cut(text: str, limit: int) -> str:
    """At most about `limit` characters: head and tail, and how much is missing between them."""
    if len(text) <= limit:
        return text
    head, tail = text[:limit // 2], text[len(text) - limit // 2:]
    # At the ends of lines, if there is one near.
    end, begin = head.rfind("\n"), tail.find("\n")
    if end > len(head) * 3 // 4:
        head = head[:end + 1]
    if 0 <= begin < len(tail) // 4:
        tail = tail[begin + 1:]
    left_out = len(text) - len(head) - len(tail)
    between = "" if head.endswith("\n") else "\n"
    return f"{head}{between}[... {left_out} of {len(text)} characters left out ...]\n{tail}"


def explain(error: PaddockError) -> str:
    """An error of the package, for a model."""
    hint = _HINTS.get(error.code)
    return f"Error: {error.message}" + (f" ({hint})" if hint else "")


def is_network(text: str) -> bool:
    """Does this output say that the network was missed?"""
    return _NETWORK.search(text) is not None


def show_result(result: ExecResult, limit: int) -> Answer:
    """The end of a command and its output; each stream is cut for itself."""
    parts: List[str] = []
    if result.stdout:
        parts.append(cut(result.stdout, limit).rstrip("\n"))
    if result.stderr:
        parts.append("[stderr]\n" + cut(result.stderr, max(limit // 2, 1)).rstrip("\n"))
    if result.timed_out:
        parts.append("[timed out: the command and its children were ended. Allow more time, or run "
                     "it in a terminal with shell_interactive]")
    elif result.stopped_by:
        parts.append(f"[stopped by {result.stopped_by}]")
    elif result.signal:
        parts.append(f"[ended by {result.signal}]")
    if result.stdout_truncated or result.stderr_truncated:
        parts.append("[some output was left out; write it to a file to see all of it]")
    if result.status and is_network(result.stdout + result.stderr):
        parts.append(f"[{NO_NETWORK}]")
    parts.append(f"[exit code {result.status}]" if result.status or not parts else "")
    return Answer("\n".join(p for p in parts if p), {
        "exit_code": result.status, "stdout": cut(result.stdout, limit),
        "stderr": cut(result.stderr, limit), "timed_out": result.timed_out,
        "execution_time_ms": result.execution_time_ms})
