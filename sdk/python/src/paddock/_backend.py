"""The seam between the interfaces and what carries them out.

Everything above this module is written against `Backend` and does not know whether it is a server
that is talked to over HTTP (`_remote.py`) or the library in this process (`_local.py`).

Rules for an implementation:

- It is thread-safe: any number of threads may call at the same time, on the same sandbox too.
- Errors are those of `paddock.errors`, with the codes of the server.
- A blocking call ends with `Cancelled` when its token (`_cancel.current()`) is cancelled; a
  command that was waited for is then ended, with its children.
- A command is a string, a line for bash whose directory and exported variables hold for the next
  one, or a sequence of strings, a program and its arguments.
- Relative paths are below /workspace. `user` is "user" or "root".
"""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import (
    Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Protocol, Sequence,
    Tuple, Union,
)

from ._selection import MODES, PROVIDERS, check_name, select
from .errors import (
    NotFoundError, PaddockError, SessionExpiredError, SessionLostError, UnsupportedError,
)
from .models import (
    ContextInfo, Entry, Environment, ExecResult, OutputChunk, OutputEvent, PortInfo, Preview,
    ProcessInfo, Replaced, SandboxInfo, SandboxOptions, SearchResult, Usage,
)

Command = Union[str, Sequence[str]]
OutputCallback = Callable[[bytes], None]
EventCallback = Callable[[Dict[str, Any]], None]
FileData = Union[str, bytes, bytearray, BinaryIO, Iterable[bytes]]

DEFAULT_URL = "http://127.0.0.1:8090"


class Backend(Protocol):
    """What can be done with sandboxes."""

    mode: str

    # ---- sandboxes ----

    def create(self, options: SandboxOptions, *, user_id: Optional[str] = None,
               thread_id: Optional[str] = None) -> SandboxInfo: ...

    def get_or_create(self, user_id: str, thread_id: str, options: SandboxOptions, *,
                      auto_retry: bool = False) -> SandboxInfo:
        """`created` tells whether it was made; `recreated` that the last one was gone."""
        ...

    def find(self, sandbox_id: str) -> SandboxInfo: ...

    def find_session(self, user_id: str, thread_id: str) -> SandboxInfo: ...

    def list(self, *, state: Optional[str] = None, user_id: Optional[str] = None,
             thread_id: Optional[str] = None,
             metadata: Optional[Mapping[str, str]] = None) -> Iterator[SandboxInfo]: ...

    def end(self, sandbox_id: str) -> bool:
        """False when there is no such sandbox."""
        ...

    def pause(self, sandbox_id: str) -> SandboxInfo: ...

    def resume(self, sandbox_id: str) -> SandboxInfo: ...

    def extend(self, sandbox_id: str, *, idle_timeout_s: Optional[float] = None,
               expires_in_s: Optional[float] = None) -> SandboxInfo: ...

    def move_sandbox(self, sandbox_id: str, provider: str, *, give_up: bool = False) -> SandboxInfo:
        """To another provider, with files, directory and environment. With `give_up` what runs in it
        is ended; otherwise that is a ConflictError."""
        ...

    def usage(self, sandbox_id: str) -> Usage: ...

    # ---- commands and processes ----

    def exec(self, sandbox_id: str, command: Command, *, cwd: Optional[str] = None,
             env: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
             stdin: Union[str, bytes, None] = None, timeout_s: Optional[float] = 30,
             output_max_bytes: Optional[int] = None, on_stdout: Optional[OutputCallback] = None,
             on_stderr: Optional[OutputCallback] = None, retry_key: Optional[str] = None,
             execution_mode: Optional[str] = None) -> ExecResult:
        """Runs a command to its end. `timeout_s` None or 0 is no limit.

        With a `retry_key` the call may be repeated with the same key, and the command still runs
        once; it then also goes on when the caller goes away.
        """
        ...

    def start(self, sandbox_id: str, command: Command, *, cwd: Optional[str] = None,
              env: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
              stdin: bool = False, pty: bool = False, rows: int = 24, cols: int = 80,
              timeout_s: Optional[float] = None, back_pressure: bool = False,
              execution_mode: Optional[str] = None) -> ProcessInfo: ...

    def processes(self, sandbox_id: str) -> List[ProcessInfo]: ...

    def process(self, sandbox_id: str, pid: Union[int, str]) -> ProcessInfo:
        """By pid, or by the `process_id` that is never used again."""
        ...

    def signal(self, sandbox_id: str, pid: Union[int, str], signal: Union[int, str]) -> None: ...

    def kill(self, sandbox_id: str, pid: Union[int, str]) -> None:
        """Ends the process and all its children."""
        ...

    def write_stdin(self, sandbox_id: str, pid: Union[int, str], data: bytes, *,
                    close: bool = False) -> None: ...

    def resize(self, sandbox_id: str, pid: Union[int, str], rows: int, cols: int) -> None: ...

    def read_output(self, sandbox_id: str, pid: Union[int, str], *, stream: str = "stdout",
                    offset: int = 0, limit: Optional[int] = None) -> OutputChunk: ...

    def follow(self, sandbox_id: str, pid: Union[int, str], *,
               offsets: Optional[Tuple[int, int]] = None) -> Iterator[OutputEvent]:
        """The output from those offsets (of stdout and stderr) on, as it comes; `exit` is the last.

        A generator: closing it stops watching, and ends nothing.
        """
        ...

    # ---- code contexts ----

    def create_context(self, sandbox_id: str, *, language: str = "python",
                       cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
                       name: Optional[str] = None) -> ContextInfo: ...

    def contexts(self, sandbox_id: str) -> List[ContextInfo]: ...

    def remove_context(self, sandbox_id: str, context_id: str) -> None:
        """The id of a context, here and below, may be a language: its default context."""
        ...

    def restart_context(self, sandbox_id: str, context_id: str) -> ContextInfo: ...

    def fork_context(self, sandbox_id: str, context_id: str, *,
                     force: bool = False) -> ContextInfo:
        """The new one, with all its variables; `force`: also when threads are lost."""
        ...

    def undo_context(self, sandbox_id: str, context_id: str) -> ContextInfo: ...

    def interrupt_context(self, sandbox_id: str, context_id: str) -> bool:
        """False when nothing runs in it."""
        ...

    def execute(self, sandbox_id: str, context_id: str, code: str, on_event: EventCallback, *,
                env: Optional[Mapping[str, str]] = None, timeout_s: Optional[float] = None,
                keep_before: bool = False) -> None:
        """Runs a cell to its end. Tells its events as they come; `type` says which: "start",
        "stdout", "stderr", "result", "error", and "end" as the last one. A cell whose caller is
        cancelled, or whose `on_event` raises, is interrupted.
        """
        ...

    # ---- files ----

    def read_file(self, sandbox_id: str, path: str, *, offset: int = 0,
                  length: Optional[int] = None, user: Optional[str] = None) -> bytes: ...

    def iter_file(self, sandbox_id: str, path: str, *,
                  user: Optional[str] = None) -> Iterator[bytes]: ...

    def write_file(self, sandbox_id: str, path: str, data: FileData, *,
                   mode: Optional[int] = None, mkdirs: bool = True,
                   user: Optional[str] = None) -> Entry: ...

    def list_files(self, sandbox_id: str, path: str = ".", *, depth: int = 1,
                   user: Optional[str] = None) -> List[Entry]: ...

    def stat(self, sandbox_id: str, path: str, *, user: Optional[str] = None) -> Entry: ...

    def remove(self, sandbox_id: str, path: str, *, recursive: bool = False,
               user: Optional[str] = None) -> None: ...

    def mkdir(self, sandbox_id: str, path: str, *, parents: bool = True,
              mode: Optional[int] = None, user: Optional[str] = None) -> Entry: ...

    def move(self, sandbox_id: str, source: str, target: str, *, overwrite: bool = False,
             user: Optional[str] = None) -> Entry: ...

    def copy(self, sandbox_id: str, source: str, target: str, *, recursive: bool = False,
             user: Optional[str] = None) -> Entry: ...

    def chmod(self, sandbox_id: str, path: str, mode: int, *,
              user: Optional[str] = None) -> Entry: ...

    def search(self, sandbox_id: str, pattern: str, path: str = ".", *, mode: str = "literal",
               glob: Optional[str] = None, case_sensitive: bool = True, limit: int = 1000,
               user: Optional[str] = None) -> SearchResult:
        """`mode` is "literal", "regex" or "name"."""
        ...

    def replace(self, sandbox_id: str, pattern: str, replacement: str, path: str = ".", *,
                mode: str = "literal", glob: Optional[str] = None, dry_run: bool = False,
                user: Optional[str] = None) -> List[Replaced]: ...

    def watch(self, sandbox_id: str, path: str = ".", *, recursive: bool = False,
              user: Optional[str] = None) -> Iterator[Dict[str, str]]:
        """Changes below a directory: `event`, `path`, `type`. A generator; close it to stop."""
        ...

    # ---- environment, ports, the rest ----

    def environment(self, sandbox_id: str) -> Environment: ...

    def set_environment(self, sandbox_id: str, env: Optional[Mapping[str, Optional[str]]] = None,
                        cwd: Optional[str] = None) -> Environment:
        """A value of None removes the variable."""
        ...

    def ports(self, sandbox_id: str) -> List[PortInfo]: ...

    def preview(self, sandbox_id: str, port: int, *, expires_in_s: float = 3600) -> Preview: ...

    def host(self, sandbox_id: str, port: int) -> str:
        """Where the port is reached, to be put behind `http://`."""
        ...

    def providers(self) -> List[str]:
        """The names of what sandboxes can be made of; the default comes first."""
        ...

    def info(self) -> Dict[str, str]:
        """What this is: `mode`, and where it is."""
        ...

    def close(self) -> None:
        """Lets go of connections. Sandboxes stay."""
        ...


def choose_mode(mode: Optional[str] = None, server_url: Optional[str] = None, *,
                may_be_provider: bool = False) -> str:
    """Where sandboxes are: the argument, else SANDBOX_MODE. Where neither is "local" or "remote" (but
    SANDBOX_MODE the name of a provider, or nothing): "remote" if a server is named, else "local".
    Raises ValueError, which lists the valid ones, for any other.

    Args:
        may_be_provider: The argument, too, may name a provider (`choose_provider`).
    """
    said = mode or os.environ.get("SANDBOX_MODE") or ""
    names = ("auto", "sandbox") + tuple(name for name in PROVIDERS if name not in MODES)
    if said:
        chosen = check_name(
            "sandbox mode", said, MODES if mode and not may_be_provider else MODES + names,
            "mode=" if mode else "SANDBOX_MODE")
        if chosen in MODES:
            return chosen
    named = server_url or os.environ.get("PADDOCK_URL") or os.environ.get("SANDBOX_URL")
    return "remote" if named else "local"


def choose_provider(mode: Optional[str]) -> Optional[str]:
    """The provider that an argument `mode` names, if it names one."""
    chosen = (mode or "").strip().lower()
    return chosen if chosen in PROVIDERS and chosen not in MODES else None


def as_asked(options: SandboxOptions, user_id: Optional[str] = None) -> SandboxOptions:
    """The options, with what the environment asks for where the caller has not said it."""
    if options.execution_mode is not None or options.provider not in (None, "auto"):
        return options
    asked = select(user_id)
    # "auto" leaves the provider to the server, whatever the environment names; a mode is not one.
    return dataclasses.replace(options, provider=options.provider or asked.provider,
                               execution_mode=asked.execution_mode)


def choose_url(server_url: Optional[str] = None) -> str:
    """Where the server is: the argument, else PADDOCK_URL, else SANDBOX_URL, else this machine."""
    return (server_url or os.environ.get("PADDOCK_URL") or os.environ.get("SANDBOX_URL")
            or DEFAULT_URL)


def choose_key(api_key: Optional[str] = None) -> Optional[str]:
    """The key: the argument, else PADDOCK_API_KEY, else none."""
    return api_key or os.environ.get("PADDOCK_API_KEY") or None


def gone_error(info: SandboxInfo) -> PaddockError:
    """What a call on a sandbox that is gone raises."""
    text = f"sandbox {info.id} is gone: {info.end_reason or info.end_cause or 'it was ended'}"
    if info.end_cause in (None, "killed"):
        return NotFoundError(text)
    if info.end_cause in ("expired", "idle"):
        return SessionExpiredError(text)
    return SessionLostError(text)


_open: Dict[Tuple[str, str, str], Backend] = {}
_open_lock = threading.Lock()


def open_backend(mode: Optional[str] = None, server_url: Optional[str] = None,
                 api_key: Optional[str] = None) -> Backend:
    """The backend for these settings. There is one per mode, server and key in a process, so that
    its connections are shared; it is never closed by those who use it."""
    chosen = choose_mode(mode, server_url)
    if chosen == "local":
        identity = ("local", "", "")
    else:
        identity = ("remote", choose_url(server_url), choose_key(api_key) or "")
    with _open_lock:
        if identity not in _open:
            _open[identity] = _make(*identity)
        return _open[identity]


def _make(mode: str, url: str, key: str) -> Backend:
    if mode == "local":
        try:
            from ._local import LocalBackend  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise UnsupportedError(
                "mode 'local' needs the library libpaddock, which this installation of the package "
                f"does not have ({error}); use mode 'remote' with the URL of a server, or set "
                "PADDOCK_URL") from None
        local: Backend = LocalBackend()
        return local
    from ._remote import RemoteBackend

    return RemoteBackend(url, key or None)
