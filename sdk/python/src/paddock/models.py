"""What calls give back.

All of it are plain dataclasses. They can also be read like a dictionary, `result["stdout"]` or
`result.get("stdout")`, because that is what code that was written for older clients does.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Mapping, Optional, Type, TypeVar, Union

__all__ = [
    "CodeResult", "CommandResult", "ContextInfo", "Entry", "Environment", "ExecResult", "ExecutionResult", "Match",
    "OutputChunk", "OutputEvent", "PortInfo", "Preview", "ProcessInfo", "Record", "Replaced",
    "SandboxInfo", "SandboxOptions", "SearchResult", "SessionInfo", "Usage",
]

R = TypeVar("R", bound="Record")


class Record:
    """A dataclass that can be read like a dictionary."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The field of that name, or the default."""
        return self[name] if name in self.keys() else default

    def keys(self) -> List[str]:
        """The names of the fields."""
        return [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def to_dict(self) -> Dict[str, Any]:
        """A dictionary of its own."""
        return {name: self[name] for name in self.keys()}

    @classmethod
    def from_json(cls: Type[R], data: Mapping[str, Any]) -> R:
        """Made of an answer of the server; what this version does not know is left out."""
        known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in data.items() if name in known})


def parse_time(text: Optional[str]) -> Optional[datetime]:
    """A time of the server's, RFC 3339 in UTC, as a datetime."""
    if not text:
        return None
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if "." in text else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.strptime(text, form).replace(tzinfo=timezone.utc)


@dataclass
class SandboxOptions(Record):
    """What a sandbox should be. What is None is the server's default."""

    template: Optional[str] = None
    profile: Optional[str] = None
    provider: Optional[str] = None
    execution_mode: Optional[str] = None
    """`local` (no isolation, where the operator allows it), `sandbox` or `auto`."""
    image: Optional[str] = None
    """What it is made from, where the provider takes images: jail, docker, podman, kubernetes, daytona."""
    pull: Optional[str] = None
    """When provider `jail` fetches the image: `never`, `missing` or `always`."""
    git_url: Optional[str] = None
    """A repository that provider `daytona` clones into /workspace before anything runs."""
    metadata: Optional[Dict[str, str]] = None
    env: Optional[Dict[str, str]] = None
    cwd: Optional[str] = None
    policy: Optional[Union[str, Dict[str, Any]]] = None
    network: Optional[Dict[str, Any]] = None
    """A way out by rules, of a server: `{"allow": ["index.example"]}`; also `mode`, `deny`, `limits`."""
    limits: Optional[Dict[str, Union[int, float]]] = None
    idle_timeout_s: Optional[float] = None
    max_life_s: Optional[float] = None
    queue_timeout_s: Optional[float] = None

    def given(self) -> Dict[str, Any]:
        """The fields that are not None, by the server's names."""
        return {"mode" if name == "execution_mode" else name: value
                for name, value in self.to_dict().items() if value is not None}


@dataclass
class SandboxInfo(Record):
    """A sandbox, as the server describes it."""

    id: str
    state: str
    template: str = "default"
    profile: str = "strict"
    provider: str = ""
    isolation: str = "full"
    policy: Union[str, Dict[str, Any]] = "open"
    user_id: Optional[str] = None
    thread_id: Optional[str] = None
    metadata: Dict[str, str] = field(default_factory=dict)
    network: Dict[str, Any] = field(default_factory=dict)
    limits: Dict[str, Union[int, float]] = field(default_factory=dict)
    created_at: Optional[str] = None
    expires_at: Optional[str] = None
    last_used_at: Optional[str] = None
    ended_at: Optional[str] = None
    end_cause: Optional[str] = None
    end_reason: Optional[str] = None
    idle_timeout_s: float = 0
    max_life_s: float = 0
    from_pool: bool = False
    recreated: bool = False
    """It was made in place of one that was lost or had expired."""
    replaces: Optional[str] = None
    processes: int = 0
    created: bool = False
    """This call has made it. False when it was there already."""

    @property
    def sandbox_id(self) -> str:
        """The same as `id`."""
        return self.id


@dataclass
class ExecResult(Record):
    """How a command ended, and what it wrote."""

    exit_code: Optional[int]
    """None when a signal ended it; see `status`."""
    stdout: str = ""
    stderr: str = ""
    signal: Optional[str] = None
    timed_out: bool = False
    stopped_by: Optional[str] = None
    """What ended it, if not itself: `timeout`, `oom`, `pids`, `disk`, `output`, `killed`, ..."""
    state: Optional[str] = None
    execution_time_ms: float = 0
    cpu_time_ms: float = 0
    max_rss_bytes: int = 0
    process_id: str = ""
    pid: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    mode: Optional[str] = None
    """As it was asked for, or the sandbox's; and with it `provider`, `isolation` and `reason`: where
    the command ran, and why there."""
    provider: Optional[str] = None
    isolation: Optional[str] = None
    reason: Optional[str] = None

    @property
    def status(self) -> int:
        """The exit status as a shell says it: 124 after a time-out, 128 + N after signal N."""
        if self.timed_out:
            return 124
        if self.exit_code is not None:
            return self.exit_code
        return 128 + signal_number(self.signal)


def signal_number(name: Optional[str]) -> int:
    """The number of a signal; 0 if there is no such signal."""
    import signal

    try:
        return int(signal.Signals[name or ""])
    except KeyError:
        return 0


@dataclass
class ExecutionResult(Record):
    """What `SandboxClient.execute` gives back."""

    exit_code: int
    """As a shell says it: 124 after a time-out, 128 + N after signal N."""
    stdout: str
    stderr: str
    execution_time_ms: float
    timed_out: bool = False
    stopped_by: Optional[str] = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    session_id: str = ""
    recreated: bool = False
    """The session was gone; this ran in a fresh one, without the files of the old one."""
    mode: Optional[str] = None
    """As in `ExecResult`, as are `provider`, `isolation` and `reason`."""
    provider: Optional[str] = None
    isolation: Optional[str] = None
    reason: Optional[str] = None


@dataclass
class CommandResult(Record):
    """What `Sandbox.commands.run` gives back."""

    stdout: str
    stderr: str
    exit_code: int
    error: Optional[str] = None


@dataclass
class SessionInfo(Record):
    """What `SandboxClient.get_or_create_session` gives back."""

    session_id: str
    status: str
    """`created`, `existing`, or `recreated` when the one before was lost or had expired."""
    user_id: str
    thread_id: str
    expires_at: Optional[str] = None
    replaces: Optional[str] = None


@dataclass
class ProcessInfo(Record):
    """A command that was started in a sandbox."""

    pid: int
    process_id: str
    command: str = ""
    running: bool = False
    exit_code: Optional[int] = None
    signal: Optional[str] = None
    stopped_by: Optional[str] = None
    timed_out: bool = False
    started_at: Optional[str] = None
    ended_at: Optional[str] = None
    pty: bool = False
    background: bool = False
    stdin_open: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_first: int = 0
    stderr_first: int = 0
    forgotten: bool = False
    execution_time_ms: float = 0
    cpu_time_ms: float = 0
    max_rss_bytes: int = 0


@dataclass
class OutputChunk(Record):
    """A piece of a process's output."""

    data: bytes
    next_offset: int
    """Where the next piece begins."""
    first_offset: int
    """The oldest byte that is still kept."""
    running: bool
    """Whether the process was running when this was read."""


@dataclass
class OutputEvent(Record):
    """One event of a process that is followed."""

    stream: str
    """`stdout`, `stderr`, or `exit` for the last one."""
    data: bytes = b""
    stdout_offset: int = 0
    """Behind this event."""
    stderr_offset: int = 0
    result: Optional[ExecResult] = None
    """Of `exit`: how it ended, without the outputs."""


@dataclass
class Entry(Record):
    """A file, a directory or another entry."""

    name: str
    path: str
    type: str
    size: int = 0
    mode: str = "0644"
    uid: int = 0
    gid: int = 0
    modified_at: Optional[str] = None
    target: Optional[str] = None
    path_base64: Optional[str] = None
    """The path, when it is not UTF-8."""


@dataclass
class Match(Record):
    """Where a pattern was found."""

    path: str
    line: Optional[int] = None
    column: Optional[int] = None
    text: Optional[str] = None


@dataclass
class SearchResult(Record):
    """What a search found."""

    matches: List[Match]
    truncated: bool = False


@dataclass
class Replaced(Record):
    """A file in which something was replaced."""

    path: str
    replacements: int


@dataclass
class Environment(Record):
    """The variables and the directory that the next command finds."""

    env: Dict[str, str]
    cwd: str


@dataclass
class PortInfo(Record):
    """A TCP port on which something in the sandbox listens."""

    port: int
    address: str
    pid: Optional[int] = None
    command: Optional[str] = None


@dataclass
class Preview(Record):
    """A URL that reaches a port without a key until it expires."""

    url: str
    expires_at: Optional[str] = None


@dataclass
class Usage(Record):
    """What a sandbox uses."""

    time: str
    memory_bytes: int
    memory_peak_bytes: int
    cpu_time_ms: float
    pids: int
    limits: Dict[str, Union[int, float]] = field(default_factory=dict)


@dataclass
class ContextInfo(Record):
    """A code context, as the server describes it."""

    id: str
    language: str = "python"
    cwd: str = ""
    state: str = ""
    """`idle`, `busy`, or `cold` while it has no process: the next cell starts one."""
    execution_count: int = 0
    """How many cells ran in it."""
    pid: int = 0
    """Of its process, in the sandbox; 0 when there is none."""
    created_at: Optional[str] = None
    name: Optional[str] = None
    memory_bytes: Optional[int] = None
    """What its interpreter had in memory when its last cell ended, as it says itself; `None` when it does not."""


@dataclass
class CodeResult(Record):
    """What `SandboxCoordinator.execute_code` gives back."""

    success: bool
    output: str
    """What the code wrote to standard output."""
    error: str
    """What went wrong: the traceback, or why the code could not be run. Empty on success."""
    stderr: str = ""
    state_lost: bool = False
    """The interpreter is gone, and the variables of earlier calls with it."""
    execution_time_ms: float = 0
