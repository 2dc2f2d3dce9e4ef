"""`AsyncSandbox`: the same as `Sandbox` for asyncio.

How this works: every call runs in a thread of the package's own beside the event loop. Cancelling
the task breaks the call off; a command that was waited for is then ended with its children, as it is
when the connection to a server is lost.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import (
    Any, AsyncIterator, Awaitable, Callable, Dict, List, Literal, Mapping, Optional, Tuple, Type,
    TypeVar, Union, overload,
)

from ._cancel import in_thread
from ._commands import CommandHandle, Commands, Pty, PtySize, _bytes
from ._either import either
from ._filesystem import Data, EntryInfo, Filesystem, FilesystemEvent, WatchHandle
from ._git import Git, GitBranches, GitStatus
from .contexts import Context
from .errors import InvalidArgumentError
from .execution import Execution, ExecutionError, OutputMessage, Result
from .models import (
    CommandResult, ContextInfo, Environment, Match, ProcessInfo, Replaced, SandboxInfo, Usage,
)
from .sandbox import Sandbox

__all__ = [
    "AsyncCommandHandle", "AsyncCommands", "AsyncContext", "AsyncFilesystem", "AsyncGit", "AsyncPty",
    "AsyncSandbox", "AsyncWatchHandle",
]

A = TypeVar("A", bound="AsyncSandbox")
V = TypeVar("V")
# What is told of output may itself be a coroutine function.
Handler = Callable[[V], Union[object, Awaitable[object]]]
TextHandler = Handler[str]
BytesHandler = Handler[bytes]


def _on_loop(handler: Optional[Handler[V]]) -> Optional[Callable[[V], None]]:
    """Calls the handler on the event loop from a thread, and waits until it is done: so output comes
    in its order, and no faster than it is taken."""
    if handler is None:
        return None
    loop = asyncio.get_running_loop()
    hear = handler

    async def call(value: V) -> None:
        result = hear(value)
        if inspect.isawaitable(result):
            await result

    return lambda value: asyncio.run_coroutine_threadsafe(call(value), loop).result()


class AsyncCommandHandle:
    """A command that runs in the background, or in a terminal. See `CommandHandle`."""

    def __init__(self, handle: CommandHandle, on_stdout: Optional[TextHandler] = None,
                 on_stderr: Optional[TextHandler] = None,
                 on_pty: Optional[BytesHandler] = None) -> None:
        self._handle = handle
        self._handlers = (on_stdout, on_stderr, on_pty)
        self._reading: Optional[asyncio.Task[CommandResult]] = None
        if on_stdout or on_stderr or on_pty:
            self._read()

    def _read(self) -> asyncio.Task[CommandResult]:
        if self._reading is None:
            out, err, pty = self._handlers
            on_out, on_err, on_pty = _on_loop(out), _on_loop(err), _on_loop(pty)
            self._reading = asyncio.ensure_future(in_thread(lambda: self._handle.wait(
                on_pty=on_pty, on_stdout=on_out, on_stderr=on_err, check=False)))
            self._reading.add_done_callback(lambda t: t.cancelled() or t.exception())
        return self._reading

    @property
    def pid(self) -> int:
        """Its pid in the sandbox."""
        return self._handle.pid

    @property
    def process_id(self) -> str:
        """Its id, which is never used again."""
        return self._handle.process_id

    @property
    def stdout(self) -> str:
        """What was read so far."""
        return self._handle.stdout

    @property
    def stderr(self) -> str:
        """What was read so far."""
        return self._handle.stderr

    @property
    def exit_code(self) -> Optional[int]:
        """Its status; None as long as its end was not read."""
        return self._handle.exit_code

    @property
    def error(self) -> Optional[str]:
        """What ended it, if not itself."""
        return self._handle.error

    async def wait(self, check: bool = True) -> CommandResult:
        """Waits for its end. Cancelling this ends nothing; see `CommandHandle.wait`."""
        await asyncio.shield(self._read())
        return await in_thread(lambda: self._handle.wait(check=check))

    async def disconnect(self) -> None:
        """Stops reading; the command goes on."""
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            try:
                await self._reading
            except asyncio.CancelledError:
                pass
        self._reading = None

    async def kill(self) -> bool:
        """Ends it with all its children. False when it had ended."""
        return await in_thread(self._handle.kill)

    async def send_stdin(self, data: Union[str, bytes],
                         request_timeout: Optional[float] = None) -> None:
        """Writes to its standard input; it must have been started with `stdin=True`."""
        await in_thread(lambda: self._handle.send_stdin(data))

    async def close_stdin(self, request_timeout: Optional[float] = None) -> None:
        """Closes its standard input."""
        await in_thread(self._handle.close_stdin)


class AsyncCommands:
    """Commands in a sandbox. See `Commands`."""

    def __init__(self, commands: Commands) -> None:
        self._sync = commands

    @overload
    async def run(self, cmd: str, background: Literal[False] = False,
                  envs: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
                  cwd: Optional[str] = None, on_stdout: Optional[TextHandler] = None,
                  on_stderr: Optional[TextHandler] = None, stdin: Optional[bool] = None,
                  timeout: Optional[float] = None, request_timeout: Optional[float] = None,
                  check: bool = True, execution_mode: Optional[str] = None) -> CommandResult: ...

    @overload
    async def run(self, cmd: str, background: Literal[True],
                  envs: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
                  cwd: Optional[str] = None, on_stdout: Optional[TextHandler] = None,
                  on_stderr: Optional[TextHandler] = None, stdin: Optional[bool] = None,
                  timeout: Optional[float] = None, request_timeout: Optional[float] = None,
                  check: bool = True,
                  execution_mode: Optional[str] = None) -> AsyncCommandHandle: ...

    async def run(self, cmd: str, background: bool = False,
                  envs: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
                  cwd: Optional[str] = None, on_stdout: Optional[TextHandler] = None,
                  on_stderr: Optional[TextHandler] = None, stdin: Optional[bool] = None,
                  timeout: Optional[float] = None, request_timeout: Optional[float] = None,
                  check: bool = True, execution_mode: Optional[str] = None
                  ) -> Union[CommandResult, AsyncCommandHandle]:
        """Runs a line of bash. Cancelling the task ends the command, unless it is in the background.

        `on_stdout` and `on_stderr` may be coroutine functions; in the background they work as well.
        Everything else is as in `Commands.run`.
        """
        if background:
            handle = await in_thread(lambda: self._sync.run(
                cmd, True, envs=envs, user=user, cwd=cwd, stdin=stdin, timeout=timeout,
                execution_mode=execution_mode))
            return AsyncCommandHandle(handle, on_stdout, on_stderr)
        out, err = _on_loop(on_stdout), _on_loop(on_stderr)
        return await in_thread(lambda: self._sync.run(
            cmd, False, envs=envs, user=user, cwd=cwd, on_stdout=out, on_stderr=err,
            timeout=timeout, check=check, execution_mode=execution_mode))

    async def list(self, request_timeout: Optional[float] = None) -> List[ProcessInfo]:
        """The commands that run, terminals included."""
        return await in_thread(self._sync.list)

    async def connect(self, pid: int, timeout: Optional[float] = None,
                      request_timeout: Optional[float] = None,
                      on_stdout: Optional[TextHandler] = None,
                      on_stderr: Optional[TextHandler] = None) -> AsyncCommandHandle:
        """A handle for a command that was started before."""
        return AsyncCommandHandle(await in_thread(lambda: self._sync.connect(pid, timeout)),
                                  on_stdout, on_stderr)

    async def kill(self, pid: int, request_timeout: Optional[float] = None) -> bool:
        """Ends a command with all its children. False when there is none that runs."""
        return await in_thread(lambda: self._sync.kill(pid))

    async def send_stdin(self, pid: int, data: Union[str, bytes],
                         request_timeout: Optional[float] = None) -> None:
        """Writes to a command's standard input."""
        await in_thread(lambda: self._sync.send_stdin(pid, data))

    async def close_stdin(self, pid: int, request_timeout: Optional[float] = None) -> None:
        """Closes a command's standard input."""
        await in_thread(lambda: self._sync.close_stdin(pid))


class AsyncPty:
    """Terminals in a sandbox. See `Pty`."""

    def __init__(self, pty: Pty) -> None:
        self._sync = pty

    async def create(self, size: PtySize, on_data: Optional[BytesHandler] = None,
                     user: Optional[str] = None, cwd: Optional[str] = None,
                     envs: Optional[Mapping[str, str]] = None, timeout: Optional[float] = None,
                     request_timeout: Optional[float] = None) -> AsyncCommandHandle:
        """A shell in a terminal of that size; `on_data` is told what it shows."""
        handle = await in_thread(
            lambda: self._sync.create(size, user=user, cwd=cwd, envs=envs, timeout=timeout))
        return AsyncCommandHandle(handle, on_pty=on_data)

    async def connect(self, pid: int, on_data: Optional[BytesHandler] = None,
                      timeout: Optional[float] = None,
                      request_timeout: Optional[float] = None) -> AsyncCommandHandle:
        """A handle for a terminal that was made before."""
        handle = await in_thread(lambda: self._sync.connect(pid, timeout))
        return AsyncCommandHandle(handle, on_pty=on_data)

    async def send_stdin(self, pid: int, data: Union[str, bytes],
                         request_timeout: Optional[float] = None) -> None:
        """Types into a terminal."""
        await in_thread(lambda: self._sync.send_stdin(pid, _bytes(data)))

    async def resize(self, pid: int, size: PtySize,
                     request_timeout: Optional[float] = None) -> None:
        """Changes a terminal's size."""
        await in_thread(lambda: self._sync.resize(pid, size))

    async def kill(self, pid: int, request_timeout: Optional[float] = None) -> bool:
        """Ends a terminal with all that runs in it. False when there is none."""
        return await in_thread(lambda: self._sync.kill(pid))


class AsyncWatchHandle:
    """A directory that is watched. See `WatchHandle`."""

    def __init__(self, handle: WatchHandle) -> None:
        self._handle = handle

    async def get_new_events(self) -> List[FilesystemEvent]:
        """What happened since the last call."""
        return self._handle.get_new_events()

    async def stop(self) -> None:
        """Stops watching."""
        await in_thread(self._handle.stop)


class AsyncFilesystem:
    """Files of a sandbox. See `Filesystem`."""

    def __init__(self, files: Filesystem) -> None:
        self._sync = files

    @overload
    async def read(self, path: str, format: Literal["text"] = "text", user: Optional[str] = None,
                   request_timeout: Optional[float] = None) -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"], user: Optional[str] = None,
                   request_timeout: Optional[float] = None) -> bytes: ...

    @overload
    async def read(self, path: str, format: Literal["stream"], user: Optional[str] = None,
                   request_timeout: Optional[float] = None) -> AsyncIterator[bytes]: ...

    async def read(self, path: str, format: Literal["text", "bytes", "stream"] = "text",
                   user: Optional[str] = None, request_timeout: Optional[float] = None
                   ) -> Union[str, bytes, AsyncIterator[bytes]]:
        """The contents of a file: as "text", as "bytes", or as a "stream" of pieces."""
        if format == "stream":
            pieces = await in_thread(lambda: self._sync.read(path, "stream", user=user))

            async def stream() -> AsyncIterator[bytes]:
                while True:
                    piece = await in_thread(lambda: next(pieces, b""))
                    if not piece:
                        return
                    yield piece

            return stream()
        if format == "bytes":
            return await in_thread(lambda: self._sync.read(path, "bytes", user=user))
        return await in_thread(lambda: self._sync.read(path, format, user=user))

    async def write(self, path: str, data: Data, user: Optional[str] = None,
                    request_timeout: Optional[float] = None) -> EntryInfo:
        """Writes a file, at once and whole; missing directories are made."""
        return await in_thread(lambda: self._sync.write(path, data, user))

    async def write_files(self, files: List[Mapping[str, Data]], user: Optional[str] = None,
                          request_timeout: Optional[float] = None) -> List[EntryInfo]:
        """Writes several files, given as dictionaries with `path` and `data`."""
        return await in_thread(lambda: self._sync.write_files(files, user))

    async def list(self, path: str = ".", depth: int = 1, user: Optional[str] = None,
                   request_timeout: Optional[float] = None) -> List[EntryInfo]:
        """The entries of a directory, sorted by path; `depth` levels of it."""
        return await in_thread(lambda: self._sync.list(path, depth, user))

    async def exists(self, path: str, user: Optional[str] = None,
                     request_timeout: Optional[float] = None) -> bool:
        """Whether there is such a file or directory."""
        return await in_thread(lambda: self._sync.exists(path, user))

    async def get_info(self, path: str, user: Optional[str] = None,
                       request_timeout: Optional[float] = None) -> EntryInfo:
        """One entry; of a symbolic link, the link itself."""
        return await in_thread(lambda: self._sync.get_info(path, user))

    async def remove(self, path: str, user: Optional[str] = None,
                     request_timeout: Optional[float] = None) -> None:
        """Removes a file, or a directory with all that is in it."""
        await in_thread(lambda: self._sync.remove(path, user))

    async def rename(self, old_path: str, new_path: str, user: Optional[str] = None,
                     request_timeout: Optional[float] = None) -> EntryInfo:
        """Moves a file or directory. What is at the new path is replaced."""
        return await in_thread(lambda: self._sync.rename(old_path, new_path, user))

    async def copy(self, path: str, new_path: str, user: Optional[str] = None) -> EntryInfo:
        """Copies a file, or a directory with all that is in it."""
        return await in_thread(lambda: self._sync.copy(path, new_path, user))

    async def make_dir(self, path: str, user: Optional[str] = None,
                       request_timeout: Optional[float] = None) -> bool:
        """Makes a directory and those that it needs. False when it was there."""
        return await in_thread(lambda: self._sync.make_dir(path, user))

    async def search(self, pattern: str, path: str = ".", mode: str = "literal",
                     glob: Optional[str] = None, user: Optional[str] = None) -> List[Match]:
        """Where a pattern is found below a path; `mode` is "literal", "regex" or "name"."""
        return await in_thread(lambda: self._sync.search(pattern, path, mode, glob, user))

    async def replace(self, pattern: str, replacement: str, path: str = ".",
                      mode: str = "literal", glob: Optional[str] = None,
                      user: Optional[str] = None) -> List[Replaced]:
        """Replaces every match below a path (or in that file); tells in which files."""
        return await in_thread(
            lambda: self._sync.replace(pattern, replacement, path, mode, glob, user))

    async def watch_dir(self, path: str, user: Optional[str] = None,
                        request_timeout: Optional[float] = None,
                        recursive: bool = False) -> AsyncWatchHandle:
        """Watches a directory; the handle has the events."""
        return AsyncWatchHandle(
            await in_thread(lambda: self._sync.watch_dir(path, user, recursive=recursive)))


class AsyncGit:
    """Git repositories in a sandbox: the methods of `Git`, each to be awaited."""

    def __init__(self, git: Git) -> None:
        self._sync = git

    async def clone(self, url: str, path: Optional[str] = None, **options: Any) -> CommandResult:
        """See `Git.clone`."""
        return await in_thread(lambda: self._sync.clone(url, path, **options))

    async def init(self, path: str, **options: Any) -> CommandResult:
        """See `Git.init`."""
        return await in_thread(lambda: self._sync.init(path, **options))

    async def status(self, path: str, **options: Any) -> GitStatus:
        """See `Git.status`."""
        return await in_thread(lambda: self._sync.status(path, **options))

    async def diff(self, path: str, **options: Any) -> str:
        """See `Git.diff`."""
        return await in_thread(lambda: self._sync.diff(path, **options))

    async def add(self, path: str, files: Optional[List[str]] = None,
                  **options: Any) -> CommandResult:
        """See `Git.add`."""
        return await in_thread(lambda: self._sync.add(path, files, **options))

    async def commit(self, path: str, message: str, **options: Any) -> CommandResult:
        """See `Git.commit`."""
        return await in_thread(lambda: self._sync.commit(path, message, **options))

    async def branches(self, path: str, **options: Any) -> GitBranches:
        """See `Git.branches`."""
        return await in_thread(lambda: self._sync.branches(path, **options))

    async def create_branch(self, path: str, branch: str, **options: Any) -> CommandResult:
        """See `Git.create_branch`."""
        return await in_thread(lambda: self._sync.create_branch(path, branch, **options))

    async def checkout_branch(self, path: str, branch: str, **options: Any) -> CommandResult:
        """See `Git.checkout_branch`."""
        return await in_thread(lambda: self._sync.checkout_branch(path, branch, **options))

    async def delete_branch(self, path: str, branch: str, **options: Any) -> CommandResult:
        """See `Git.delete_branch`."""
        return await in_thread(lambda: self._sync.delete_branch(path, branch, **options))

    async def remote_add(self, path: str, name: str, url: str, **options: Any) -> CommandResult:
        """See `Git.remote_add`."""
        return await in_thread(lambda: self._sync.remote_add(path, name, url, **options))

    async def remote_get(self, path: str, name: str, **options: Any) -> Optional[str]:
        """See `Git.remote_get`."""
        return await in_thread(lambda: self._sync.remote_get(path, name, **options))

    async def reset(self, path: str, **options: Any) -> CommandResult:
        """See `Git.reset`."""
        return await in_thread(lambda: self._sync.reset(path, **options))

    async def restore(self, path: str, paths: List[str], **options: Any) -> CommandResult:
        """See `Git.restore`."""
        return await in_thread(lambda: self._sync.restore(path, paths, **options))

    async def push(self, path: str, **options: Any) -> CommandResult:
        """See `Git.push`."""
        return await in_thread(lambda: self._sync.push(path, **options))

    async def pull(self, path: str, **options: Any) -> CommandResult:
        """See `Git.pull`."""
        return await in_thread(lambda: self._sync.pull(path, **options))

    async def set_config(self, key: str, value: str, **options: Any) -> CommandResult:
        """See `Git.set_config`."""
        return await in_thread(lambda: self._sync.set_config(key, value, **options))

    async def get_config(self, key: str, **options: Any) -> Optional[str]:
        """See `Git.get_config`."""
        return await in_thread(lambda: self._sync.get_config(key, **options))

    async def configure_user(self, name: str, email: str, **options: Any) -> CommandResult:
        """See `Git.configure_user`."""
        return await in_thread(lambda: self._sync.configure_user(name, email, **options))


@dataclass
class AsyncContext(ContextInfo):
    """An interpreter of a sandbox. See `Context`."""

    def __post_init__(self) -> None:
        self._sync: Optional[Context] = None
        self._sandbox: Optional[AsyncSandbox] = None

    @classmethod
    def _around(cls, context: Context, sandbox: AsyncSandbox) -> AsyncContext:
        made = cls(**context.to_dict())
        made._sync, made._sandbox = context, sandbox
        return made

    def _of(self) -> Tuple[Context, AsyncSandbox]:
        if self._sync is None or self._sandbox is None:
            raise InvalidArgumentError(
                f"context '{self.id}' belongs to no sandbox: take one from create_code_context() or "
                "list_code_contexts()", details={"field": "context"})
        return self._sync, self._sandbox

    async def run(self, code: str, **options: Any) -> Execution:
        """Runs a cell in it. The options are those of `AsyncSandbox.run_code`."""
        return await self._of()[1].run_code(code, context=self, **options)

    async def fork(self, force: bool = False) -> AsyncContext:
        """Another context with all the variables that this one has now. See `Context.fork`."""
        context, sandbox = self._of()
        return self._around(await in_thread(lambda: context.fork(force)), sandbox)

    async def undo(self) -> AsyncContext:
        """Takes back the last cell that was run with `keep_before=True`. See `Context.undo`."""
        context, sandbox = self._of()
        return self._around(await in_thread(context.undo), sandbox)

    async def interrupt(self) -> bool:
        """Interrupts the cell that runs, with its children; variables stay. False when none runs."""
        return await in_thread(self._of()[0].interrupt)

    async def restart(self) -> AsyncContext:
        """Starts it anew, without variables."""
        context, sandbox = self._of()
        return self._around(await in_thread(context.restart), sandbox)

    async def remove(self) -> None:
        """Ends it."""
        await in_thread(self._of()[0].remove)


class AsyncSandbox:
    """One sandbox, for asyncio. See `Sandbox`: names and arguments are the same, methods are to be
    awaited, and the context manager is `async with`."""

    default_mode: Optional[str] = None

    def __init__(self, sandbox_id: str, **opts: Any) -> None:
        opts.setdefault("mode", type(self).default_mode)
        self._sync = Sandbox(sandbox_id, **opts)
        self._commands = AsyncCommands(self._sync.commands)
        self._files = AsyncFilesystem(self._sync.files)
        self._pty = AsyncPty(self._sync.pty)
        self._git = AsyncGit(self._sync.git)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sandbox_id}>"

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self._sync.sandbox_id

    @property
    def commands(self) -> AsyncCommands:
        """Commands and processes."""
        return self._commands

    @property
    def files(self) -> AsyncFilesystem:
        """Files."""
        return self._files

    @property
    def pty(self) -> AsyncPty:
        """Terminals."""
        return self._pty

    @property
    def git(self) -> AsyncGit:
        """Git repositories."""
        return self._git

    @classmethod
    def _around(cls: Type[A], box: Sandbox, opts: Dict[str, Any]) -> A:
        reach = {n: opts[n] for n in ("mode", "server_url", "api_key", "api_url") if n in opts}
        return cls(box.sandbox_id, keep=box._keep, **reach)

    @classmethod
    async def create(cls: Type[A], template: Optional[str] = None,
                     timeout: Optional[float] = None,
                     metadata: Optional[Mapping[str, str]] = None,
                     envs: Optional[Mapping[str, str]] = None, **opts: Any) -> A:
        """Makes a sandbox. See `Sandbox.create`."""
        opts.setdefault("mode", cls.default_mode)
        box = await in_thread(lambda: Sandbox.create(template, timeout, metadata, envs, **opts))
        return cls._around(box, opts)

    @classmethod
    async def for_thread(cls: Type[A], user: str, thread: str, timeout: Optional[float] = None,
                         auto_retry: bool = False, **opts: Any) -> A:
        """The sandbox of a user and a thread; made if there is none. See `Sandbox.for_thread`."""
        opts.setdefault("mode", cls.default_mode)
        box = await in_thread(
            lambda: Sandbox.for_thread(user, thread, timeout, auto_retry, **opts))
        return cls._around(box, opts)

    @classmethod
    async def list(cls, metadata: Optional[Mapping[str, str]] = None,
                   state: Optional[str] = None, **opts: Any) -> List[SandboxInfo]:
        """The sandboxes that there are. See `Sandbox.list`."""
        opts.setdefault("mode", cls.default_mode)
        return await in_thread(lambda: Sandbox.list(metadata, state, **opts))

    @either
    async def connect(self, timeout: Optional[float] = None) -> AsyncSandbox:
        """Makes sure that it is there and runs. See `Sandbox.connect`."""
        await in_thread(lambda: self._sync.connect(timeout))
        return self

    @connect.by_id
    async def _connect(cls: Type[A], sandbox_id: str, timeout: Optional[float] = None,
                       **opts: Any) -> A:
        box = cls(sandbox_id, **opts)
        await box.connect(timeout)
        return box

    @either
    async def kill(self) -> bool:
        """Ends it with all that is in it. False when there was none."""
        return await in_thread(lambda: self._sync.kill())

    @kill.by_id
    async def _kill(cls: Type[A], sandbox_id: str, **opts: Any) -> bool:
        return await cls(sandbox_id, **opts).kill()

    @either
    async def set_timeout(self, timeout: float) -> None:
        """It ends so many seconds from now, whatever was said before."""
        await in_thread(lambda: self._sync.set_timeout(timeout))

    @set_timeout.by_id
    async def _set_timeout(cls: Type[A], sandbox_id: str, timeout: float, **opts: Any) -> None:
        await cls(sandbox_id, **opts).set_timeout(timeout)

    @either
    async def pause(self, keep_memory: bool = True) -> bool:
        """Freezes every process until `connect` or `resume`."""
        return await in_thread(lambda: self._sync.pause(keep_memory))

    @pause.by_id
    async def _pause(cls: Type[A], sandbox_id: str, keep_memory: bool = True,
                     **opts: Any) -> bool:
        return await cls(sandbox_id, **opts).pause(keep_memory)

    @either
    async def resume(self) -> bool:
        """Lets the processes go on."""
        return await in_thread(lambda: self._sync.resume())

    @resume.by_id
    async def _resume(cls: Type[A], sandbox_id: str, **opts: Any) -> bool:
        return await cls(sandbox_id, **opts).resume()

    @either
    async def move(self, provider: str, give_up: bool = False) -> SandboxInfo:
        """Moves it to another provider of the server; see `Sandbox.move`."""
        return await in_thread(lambda: self._sync.move(provider, give_up))

    @move.by_id
    async def _move(cls: Type[A], sandbox_id: str, provider: str, give_up: bool = False,
                    **opts: Any) -> SandboxInfo:
        return await cls(sandbox_id, **opts).move(provider, give_up)

    @either
    async def get_info(self) -> SandboxInfo:
        """What it is, and how long it stays."""
        return await in_thread(lambda: self._sync.get_info())

    @get_info.by_id
    async def _get_info(cls: Type[A], sandbox_id: str, **opts: Any) -> SandboxInfo:
        return await cls(sandbox_id, **opts).get_info()

    async def is_running(self, request_timeout: Optional[float] = None) -> bool:
        """Whether it is there and not paused."""
        return await in_thread(self._sync.is_running)

    async def get_metrics(self) -> List[Usage]:
        """What it uses now."""
        return await in_thread(self._sync.get_metrics)

    def get_host(self, port: int) -> str:
        """Where a port of it is reached. Not to be awaited, as in E2B's package."""
        return self._sync.get_host(port)

    async def get_url(self, port: int, expires_in: float = 3600) -> str:
        """A URL that reaches a port of it without a key, until it expires."""
        return await in_thread(lambda: self._sync.get_url(port, expires_in))

    async def get_env(self) -> Environment:
        """The variables and the directory that commands find."""
        return await in_thread(self._sync.get_env)

    async def set_env(self, env: Optional[Mapping[str, Optional[str]]] = None,
                      cwd: Optional[str] = None) -> Environment:
        """Changes them; a value of None removes the variable."""
        return await in_thread(lambda: self._sync.set_env(env, cwd))

    # ---- code ----

    async def run_code(self, code: str, language: Optional[str] = None,
                       context: Optional[Union[AsyncContext, str]] = None,
                       on_stdout: Optional[Handler[OutputMessage]] = None,
                       on_stderr: Optional[Handler[OutputMessage]] = None,
                       on_result: Optional[Handler[Result]] = None,
                       on_error: Optional[Handler[ExecutionError]] = None,
                       envs: Optional[Mapping[str, str]] = None,
                       timeout: Optional[float] = 600, *, keep_before: bool = False) -> Execution:
        """Runs code in an interpreter that stays. See `Sandbox.run_code`. Cancelling the task
        interrupts the code; variables stay."""
        name = context.id if isinstance(context, AsyncContext) else context
        told = (_on_loop(on_stdout), _on_loop(on_stderr), _on_loop(on_result), _on_loop(on_error))
        return await in_thread(lambda: self._sync.run_code(
            code, language, name, *told, envs, timeout, keep_before=keep_before))

    async def create_code_context(self, cwd: Optional[str] = None, language: Optional[str] = None,
                                  envs: Optional[Mapping[str, str]] = None) -> AsyncContext:
        """Makes a context of its own. See `Sandbox.create_code_context`."""
        made = await in_thread(lambda: self._sync.create_code_context(cwd, language, envs))
        return AsyncContext._around(made, self)

    async def list_code_contexts(self) -> List[AsyncContext]:
        """The contexts that there are, in the order in which they were made."""
        found = await in_thread(self._sync.list_code_contexts)
        return [AsyncContext._around(context, self) for context in found]

    async def restart_code_context(self, context: Union[AsyncContext, str]) -> None:
        """Starts a context anew, without its variables."""
        name = context if isinstance(context, str) else context.id
        await in_thread(lambda: self._sync.restart_code_context(name))

    async def remove_code_context(self, context: Union[AsyncContext, str]) -> None:
        """Ends a context."""
        name = context if isinstance(context, str) else context.id
        await in_thread(lambda: self._sync.remove_code_context(name))

    async def __aenter__(self: A) -> A:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the sandbox; one of `for_thread` stays."""
        await in_thread(self._sync.close)
