"""Tools for the environment, processes and ports."""

from __future__ import annotations

from typing import Dict, List, Literal, Optional

from pydantic import BaseModel, Field

from ..errors import CommandNotStartedError, NotFoundError
from ..session import SandboxSession
from ._kit import Answer, Refusal, tool


class EnvGet(BaseModel):
    name: Optional[str] = Field(None, description="The variable; without it, all are shown.")


@tool("env_get", EnvGet, """Show an environment variable of the sandbox's commands, or all of them, and
      the working directory.""")
def env_get(session: SandboxSession, a: EnvGet) -> Answer:
    # What commands really find: what was set, and what the sandbox sets by itself.
    result = session.backend.exec(session.sandbox_id, ["/usr/bin/env", "-0"])
    pairs = (entry.partition("=") for entry in result.stdout.split("\0") if entry)
    found: Dict[str, str] = {name: value for name, _, value in pairs}
    state = session.backend.environment(session.sandbox_id)
    found.update(state.env)
    if a.name is not None:
        if a.name not in found:
            raise Refusal(f"Error: {a.name} is not set")
        return Answer(found[a.name], {"name": a.name, "value": found[a.name]})
    lines = [f"{name}={value}" for name, value in sorted(found.items())]
    return Answer("\n".join([*lines, f"[working directory {state.cwd}]"]),
                  {"env": found, "cwd": state.cwd})


class EnvSet(BaseModel):
    name: str = Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$", description="The variable.")
    value: Optional[str] = Field(description="Its value; null removes it.")


@tool("env_set", EnvSet, """Set an environment variable for all later commands of the sandbox, or remove
      it. Programs that run already do not notice.""")
def env_set(session: SandboxSession, a: EnvSet) -> Answer:
    session.backend.set_environment(session.sandbox_id, {a.name: a.value})
    return Answer(f"removed {a.name}" if a.value is None else f"set {a.name}", {"name": a.name})


class ProcessList(BaseModel):
    pass


@tool("process_list", ProcessList, """List the processes that run in the sandbox: pid, parent, seconds
      since the start, memory in KiB, command.""")
def process_list(session: SandboxSession, a: ProcessList) -> Answer:
    rows: List[Dict[str, object]] = []
    try:
        shown = session.backend.exec(session.sandbox_id, [
            "ps", "-ww", "-eo", "pid=,ppid=,etimes=,rss=,args="])
        for line in shown.stdout.splitlines():
            words = line.split(None, 4)
            if len(words) == 5 and words[0] != "1" and int(words[0]) != shown.pid:
                rows.append({"pid": int(words[0]), "ppid": int(words[1]), "seconds": int(words[2]),
                             "rss_kib": int(words[3]), "command": _short(words[4])})
    except CommandNotStartedError:
        # No ps there: the commands that were started, without their children.
        rows = [{"pid": p.pid, "command": _short(p.command)}
                for p in session.backend.processes(session.sandbox_id) if p.running]
    lines = []
    for row in rows:
        numbers = " ".join(str(row[k]) for k in ("pid", "ppid", "seconds", "rss_kib") if k in row)
        lines.append(f"{numbers} {row['command']}")
    return Answer("\n".join(lines) or "[no processes]", {"processes": rows})


def _short(command: str) -> str:
    if "The interpreter that runs in a sandbox" in command:
        return "[the interpreter of python_exec]"
    line = " ".join(command.split())
    return line if len(line) <= 300 else line[:297] + "..."


class ProcessKill(BaseModel):
    pid: int = Field(gt=1, description="The process, as process_list shows it.")
    signal: Literal["TERM", "KILL", "INT", "HUP"] = Field(
        "TERM", description="TERM asks it to end, KILL ends it.")


@tool("process_kill", ProcessKill, "Send a signal to a process of the sandbox, to end it.")
def process_kill(session: SandboxSession, a: ProcessKill) -> Answer:
    try:
        started = session.backend.process(session.sandbox_id, a.pid)
        if started.running and a.signal == "KILL":
            session.backend.kill(session.sandbox_id, started.process_id)
            return Answer(f"killed {a.pid} and its children", {"pid": a.pid})
    except NotFoundError:
        pass  # a child of a command, or nothing
    result = session.backend.exec(session.sandbox_id, [
        "/bin/bash", "-c", 'kill -s "$1" "$2"', "kill", a.signal, str(a.pid)])
    if result.status:
        raise Refusal(f"Error: there is no process {a.pid} that could be signalled; see "
                      "process_list")
    return Answer(f"sent SIG{a.signal} to {a.pid}", {"pid": a.pid})


class PortPreview(BaseModel):
    port: int = Field(ge=1, le=65535, description="The port that a program in the sandbox listens "
                                                  "on.")
    minutes: float = Field(60, gt=0, le=1440, description="How long the link works.")


@tool("port_preview", PortPreview, """Make a link by which people outside reach a web server that runs in
      the sandbox. The server must listen already.""")
def port_preview(session: SandboxSession, a: PortPreview) -> Answer:
    ports = session.backend.ports(session.sandbox_id)
    if all(p.port != a.port for p in ports):
        others = ", ".join(str(p.port) for p in ports) or "none"
        raise Refusal(f"Error: nothing listens on port {a.port}; ports in use: {others}. Start the "
                      "server first, with shell_interactive")
    preview = session.backend.preview(session.sandbox_id, a.port, expires_in_s=a.minutes * 60)
    return Answer(preview.url, {"url": preview.url, "expires_at": preview.expires_at})
