"""Tools for commands and terminals."""

from __future__ import annotations

import re
import time
from typing import Optional

from pydantic import BaseModel, Field

from .. import _cancel
from ..errors import ConflictError
from ..models import ProcessInfo
from ..session import SandboxSession
from ._kit import Answer, Refusal, cut, show_result, tool

# Control sequences of terminals: a model can do nothing with them.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_=>]"
                      r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f]")
_ID = Field(description="The number that shell_interactive gave.")
POLL_S = 0.05
QUIET_S = 0.3
START_S = 1.0  # for a program to say something


class ShellExec(BaseModel):
    command: str = Field(min_length=1, description="A line for bash; several lines are fine.")
    timeout: float = Field(60, gt=0, le=3600, description="Seconds until it is ended.")
    cwd: Optional[str] = Field(None, description="Absolute path of the directory to run it in; "
                                                 "without it, where the last command was left.")


@tool("shell_exec", ShellExec, """Run a command in the sandbox's bash and wait for its end. The working
      directory (at first /workspace) and exported variables hold for the next call. The result is its
      output, then the exit code if it is not 0. For programs that stay or ask questions, use
      shell_interactive.""")
def shell_exec(session: SandboxSession, a: ShellExec) -> Answer:
    result = session.backend.exec(session.sandbox_id, a.command, cwd=a.cwd, timeout_s=a.timeout)
    return show_result(result, session.output_max_chars)


class ShellInteractive(BaseModel):
    command: str = Field("bash", description="The command; without it, a shell.")
    cwd: Optional[str] = Field(None, description="Absolute path of the directory to start it in.")


@tool("shell_interactive", ShellInteractive, """Start a command in a terminal of its own and return at
      once, for programs that ask questions, servers and long work. The result has an id: give input by
      shell_write, see new output by shell_view, wait by shell_wait, end it by shell_kill.""")
def shell_interactive(session: SandboxSession, a: ShellInteractive) -> Answer:
    started = session.backend.start(
        session.sandbox_id, ["/bin/bash", "-c", a.command], cwd=a.cwd, pty=True, stdin=True, rows=50,
        cols=160, env={"TERM": "dumb", "PS1": "$ ", "PAGER": "cat", "GIT_PAGER": "cat"})
    session.set_seen(started.pid, 0)
    return _show(session, started.pid, START_S, quiet=True)


class ShellWrite(BaseModel):
    id: int = _ID
    input: str = Field(description="The text to type.")
    press_enter: bool = Field(True, description="Press enter after it.")


@tool("shell_write", ShellWrite, """Type into a terminal that shell_interactive has started; shows the
      output that follows. For Ctrl-C send input "\\u0003" without enter.""")
def shell_write(session: SandboxSession, a: ShellWrite) -> Answer:
    data = (a.input + ("\n" if a.press_enter else "")).encode()
    try:
        session.backend.write_stdin(session.sandbox_id, a.id, data)
    except ConflictError as error:
        raise Refusal(f"Error: terminal {a.id} takes no input: {error.message}") from None
    return _show(session, a.id, START_S, quiet=True)


class ShellView(BaseModel):
    id: int = _ID
    whole: bool = Field(False, description="Show all of its output, not only what is new.")


@tool("shell_view", ShellView, """Show what a terminal has written since it was last looked at, and
      whether its command still runs.""")
def shell_view(session: SandboxSession, a: ShellView) -> Answer:
    if a.whole:
        session.set_seen(a.id, 0)
    return _show(session, a.id, 0)


class ShellWait(BaseModel):
    id: int = _ID
    seconds: float = Field(30, gt=0, le=600, description="Wait at most so long.")
    until: Optional[str] = Field(None, description="Stop waiting when its new output has this text.")


@tool("shell_wait", ShellWait, """Wait until the command in a terminal has ended, or its output has some
      text; shows the new output. It goes on if the time was not enough.""")
def shell_wait(session: SandboxSession, a: ShellWait) -> Answer:
    return _show(session, a.id, a.seconds, until=a.until)


class ShellKill(BaseModel):
    id: int = _ID


@tool("shell_kill", ShellKill, "End the command in a terminal, with all its children.")
def shell_kill(session: SandboxSession, a: ShellKill) -> Answer:
    info = session.backend.process(session.sandbox_id, a.id)
    if not info.running:
        return Answer(f"terminal {a.id} had ended already: {_state(info)}", {"id": a.id})
    session.backend.kill(session.sandbox_id, a.id)
    return Answer(f"ended terminal {a.id}", {"id": a.id})


def _state(info: ProcessInfo) -> str:
    if info.running:
        return "running"
    return f"ended by {info.signal}" if info.signal else f"ended with exit code {info.exit_code}"


def _show(session: SandboxSession, pid: int, seconds: float, *, quiet: bool = False,
          until: Optional[str] = None) -> Answer:
    """The new output of a terminal, after at most so many seconds: when it has ended, when there is
    some and nothing more comes (`quiet`), or when there is a text (`until`)."""
    deadline = time.monotonic() + seconds
    offset = session.seen(pid)
    data = bytearray()
    last = time.monotonic()
    while True:
        info = session.backend.process(session.sandbox_id, pid)
        chunk = session.backend.read_output(session.sandbox_id, pid, offset=offset)
        now = time.monotonic()
        if chunk.data:
            data += chunk.data
            offset = chunk.next_offset
            last = now
            continue
        if not info.running or now >= deadline or _cancel.cancelled():
            break
        if quiet and data and now - last >= QUIET_S:
            break
        if until and until in _text(data):
            break
        time.sleep(POLL_S)
    session.set_seen(pid, offset)
    text = cut(_text(data), session.output_max_chars).rstrip("\n")
    state = f"[terminal {pid}: {_state(info)}]"
    return Answer(f"{text}\n{state}" if text else f"[no new output]\n{state}", {
        "id": pid, "running": info.running, "exit_code": info.exit_code, "output": text})


def _text(data: bytearray) -> str:
    return _CONTROL.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))
