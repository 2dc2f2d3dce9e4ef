"""`Sandbox.commands` and `Sandbox.pty`."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import (
    Callable, Dict, Generator, Iterator, List, Literal, Mapping, Optional, Tuple, Union, overload,
)

from ._backend import Backend
from ._text import text_callback
from .errors import CommandExitError, CommandTimeoutError, NotFoundError
from .models import CommandResult, ExecResult, OutputEvent, ProcessInfo

OUTPUT_MAX = 16 * 1024 * 1024
Piece = Tuple[Optional[str], Optional[str], Optional[bytes]]
Text = Callable[[str], None]


@dataclass
class PtySize:
    """The size of a terminal."""

    rows: int
    cols: int


def why_ended(result: ExecResult) -> Optional[str]:
    """What ended a command, if not itself."""
    if result.stopped_by:
        return f"stopped by {result.stopped_by}"
    return f"ended by {result.signal}" if result.signal else None


def _result(result: ExecResult, timeout: Optional[float], check: bool) -> CommandResult:
    if result.timed_out and check:
        limit = f" in {timeout:g} s" if timeout else " in time"
        raise CommandTimeoutError(f"the command was not done{limit} and was ended", result.stdout,
                                  result.stderr)
    error = why_ended(result)
    if result.status and check:
        raise CommandExitError(result.status, result.stdout, result.stderr, error)
    return CommandResult(result.stdout, result.stderr, result.status, error)


class CommandHandle:
    """A command that runs in the background, or in a terminal.

    Iterating over it gives its output as it comes, as (stdout, stderr, pty) of which one is not
    None. Nothing happens to the command when the handle is dropped.
    """

    def __init__(self, backend: Backend, sandbox_id: str, process: ProcessInfo,
                 timeout: Optional[float] = None) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._process = process
        self._timeout = timeout
        self._events: Optional[Iterator[OutputEvent]] = None
        self._offsets: Optional[Tuple[int, int]] = None
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace")
                          for name in ("stdout", "stderr")}
        self._kept: Dict[str, List[str]] = {"stdout": [], "stderr": []}
        self._end: Optional[ExecResult] = None

    @property
    def pid(self) -> int:
        """Its pid in the sandbox."""
        return self._process.pid

    @property
    def process_id(self) -> str:
        """Its id, which is never used again."""
        return self._process.process_id

    @property
    def stdout(self) -> str:
        """What was read so far."""
        return "".join(self._kept["stdout"])

    @property
    def stderr(self) -> str:
        """What was read so far."""
        return "".join(self._kept["stderr"])

    @property
    def exit_code(self) -> Optional[int]:
        """Its status; None as long as its end was not read."""
        return self._end.status if self._end else None

    @property
    def error(self) -> Optional[str]:
        """What ended it, if not itself."""
        return why_ended(self._end) if self._end else None

    def __iter__(self) -> Generator[Piece, None, None]:
        if self._end is not None:
            return
        if self._events is None:
            self._events = self._backend.follow(self._sandbox_id, self.process_id,
                                                offsets=self._offsets)
        for event in self._events:
            self._offsets = (event.stdout_offset, event.stderr_offset)
            if event.stream == "exit":
                self._end = event.result
                for name in ("stdout", "stderr"):
                    rest = self._decoders[name].decode(b"", True)
                    if rest and not self._process.pty:
                        self._kept[name].append(rest)
                        yield (rest, None, None) if name == "stdout" else (None, rest, None)
                break
            if self._process.pty:
                yield None, None, event.data
                continue
            text = self._decoders[event.stream].decode(event.data)
            if text:
                self._kept[event.stream].append(text)
                yield (text, None, None) if event.stream == "stdout" else (None, text, None)
        self._events = None

    def wait(self, on_pty: Optional[Callable[[bytes], None]] = None,
             on_stdout: Optional[Text] = None, on_stderr: Optional[Text] = None,
             check: bool = True) -> CommandResult:
        """Waits for its end, and tells of its output meanwhile.

        Raises:
            CommandExitError: Its status is not 0 (unless `check` is false).
            CommandTimeoutError: It was ended by its time-out (unless `check` is false).
        """
        for out, err, pty in self:
            if out is not None and on_stdout:
                on_stdout(out)
            if err is not None and on_stderr:
                on_stderr(err)
            if pty is not None and on_pty:
                on_pty(pty)
        assert self._end is not None
        self._end.stdout, self._end.stderr = self.stdout, self.stderr
        return _result(self._end, self._timeout, check)

    def disconnect(self) -> None:
        """Stops reading; the command goes on, and reading may begin again."""
        close = getattr(self._events, "close", None)
        self._events = None
        if close:
            close()

    def kill(self) -> bool:
        """Ends it with all its children. False when it had ended."""
        return _kill(self._backend, self._sandbox_id, self.process_id)

    def send_stdin(self, data: Union[str, bytes], request_timeout: Optional[float] = None) -> None:
        """Writes to its standard input; it must have been started with `stdin=True`."""
        self._backend.write_stdin(self._sandbox_id, self.process_id, _bytes(data))

    def close_stdin(self, request_timeout: Optional[float] = None) -> None:
        """Closes its standard input."""
        self._backend.write_stdin(self._sandbox_id, self.process_id, b"", close=True)


def _bytes(data: Union[str, bytes]) -> bytes:
    return data.encode() if isinstance(data, str) else data


def _kill(backend: Backend, sandbox_id: str, pid: Union[int, str]) -> bool:
    try:
        running = backend.process(sandbox_id, pid).running
        if running:
            backend.kill(sandbox_id, pid)
    except NotFoundError:
        return False
    return running


class Commands:
    """Commands in a sandbox.

    Each is run by a login shell of its own: unlike in `SandboxClient`, its directory and variables
    do not hold for the next one.
    """

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id

    @overload
    def run(self, cmd: str, background: Literal[False] = False,
            envs: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
            cwd: Optional[str] = None, on_stdout: Optional[Text] = None,
            on_stderr: Optional[Text] = None, stdin: Optional[bool] = None,
            timeout: Optional[float] = None, request_timeout: Optional[float] = None,
            check: bool = True, execution_mode: Optional[str] = None) -> CommandResult: ...

    @overload
    def run(self, cmd: str, background: Literal[True],
            envs: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
            cwd: Optional[str] = None, on_stdout: Optional[Text] = None,
            on_stderr: Optional[Text] = None, stdin: Optional[bool] = None,
            timeout: Optional[float] = None, request_timeout: Optional[float] = None,
            check: bool = True, execution_mode: Optional[str] = None) -> CommandHandle: ...

    def run(self, cmd: str, background: bool = False, envs: Optional[Mapping[str, str]] = None,
            user: Optional[str] = None, cwd: Optional[str] = None,
            on_stdout: Optional[Text] = None, on_stderr: Optional[Text] = None,
            stdin: Optional[bool] = None, timeout: Optional[float] = None,
            request_timeout: Optional[float] = None, check: bool = True,
            execution_mode: Optional[str] = None) -> Union[CommandResult, CommandHandle]:
        """Runs a line of bash.

        Args:
            cmd: The line.
            background: Do not wait for its end; the result is then a `CommandHandle`.
            envs: Variables for this command only.
            user: "user" or "root" of the sandbox.
            cwd: An absolute path; without it, /workspace.
            on_stdout: Called with its output as it comes (not in the background).
            on_stderr: Likewise.
            stdin: Keep standard input open for `send_stdin` (in the background).
            timeout: In seconds; then it is ended with its children. Without it, 60 for a command
                that is waited for and no limit in the background; 0 is no limit.
            request_timeout: Accepted, and has no effect.
            check: Raise when it did not end well.
            execution_mode: What it may run in, other than the sandbox's own: `local`, `sandbox` or
                `auto`. A sandbox that is isolated too little moves first; none moves down.

        Raises:
            CommandExitError: Its status is not 0.
            CommandTimeoutError: It was not done in time.
        """
        argv = ["/bin/bash", "-l", "-c", cmd]
        if background:
            process = self._backend.start(
                self._sandbox_id, argv, cwd=cwd, env=envs, user=user, stdin=bool(stdin),
                timeout_s=timeout, execution_mode=execution_mode)
            return CommandHandle(self._backend, self._sandbox_id, process, timeout)
        limit = 60.0 if timeout is None else timeout
        out, finish_out = text_callback(on_stdout)
        err, finish_err = text_callback(on_stderr)
        result = self._backend.exec(
            self._sandbox_id, argv, cwd=cwd, env=envs, user=user, timeout_s=limit,
            output_max_bytes=OUTPUT_MAX, on_stdout=out, on_stderr=err,
            execution_mode=execution_mode)
        finish_out()
        finish_err()
        return _result(result, limit, check)

    def list(self, request_timeout: Optional[float] = None) -> List[ProcessInfo]:
        """The commands that run, terminals included."""
        return [p for p in self._backend.processes(self._sandbox_id) if p.running]

    def connect(self, pid: int, timeout: Optional[float] = None,
                request_timeout: Optional[float] = None) -> CommandHandle:
        """A handle for a command that was started before; its output comes from the beginning."""
        return CommandHandle(self._backend, self._sandbox_id,
                             self._backend.process(self._sandbox_id, pid), timeout)

    def kill(self, pid: int, request_timeout: Optional[float] = None) -> bool:
        """Ends a command with all its children. False when there is none that runs."""
        return _kill(self._backend, self._sandbox_id, pid)

    def send_stdin(self, pid: int, data: Union[str, bytes],
                   request_timeout: Optional[float] = None) -> None:
        """Writes to a command's standard input."""
        self._backend.write_stdin(self._sandbox_id, pid, _bytes(data))

    def close_stdin(self, pid: int, request_timeout: Optional[float] = None) -> None:
        """Closes a command's standard input."""
        self._backend.write_stdin(self._sandbox_id, pid, b"", close=True)


class Pty:
    """Terminals in a sandbox."""

    def __init__(self, backend: Backend, sandbox_id: str) -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id

    def create(self, size: PtySize, user: Optional[str] = None, cwd: Optional[str] = None,
               envs: Optional[Mapping[str, str]] = None, timeout: Optional[float] = None,
               request_timeout: Optional[float] = None) -> CommandHandle:
        """A shell in a terminal of that size. Read it by `wait(on_pty=...)` or by iterating."""
        env = {"TERM": "xterm-256color", **(envs or {})}
        process = self._backend.start(
            self._sandbox_id, ["/bin/bash", "-i", "-l"], pty=True, rows=size.rows, cols=size.cols,
            user=user, cwd=cwd, env=env, timeout_s=timeout)
        return CommandHandle(self._backend, self._sandbox_id, process, timeout)

    def connect(self, pid: int, timeout: Optional[float] = None,
                request_timeout: Optional[float] = None) -> CommandHandle:
        """A handle for a terminal that was made before."""
        return CommandHandle(self._backend, self._sandbox_id,
                             self._backend.process(self._sandbox_id, pid), timeout)

    def send_stdin(self, pid: int, data: Union[str, bytes],
                   request_timeout: Optional[float] = None) -> None:
        """Types into a terminal."""
        self._backend.write_stdin(self._sandbox_id, pid, _bytes(data))

    def resize(self, pid: int, size: PtySize, request_timeout: Optional[float] = None) -> None:
        """Changes a terminal's size."""
        self._backend.resize(self._sandbox_id, pid, size.rows, size.cols)

    def kill(self, pid: int, request_timeout: Optional[float] = None) -> bool:
        """Ends a terminal with all that runs in it. False when there is none."""
        return _kill(self._backend, self._sandbox_id, pid)
