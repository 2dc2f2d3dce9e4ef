"""`Sandbox`: one sandbox, with the nouns and verbs of E2B's package.

    with Sandbox.create(timeout=300) as sandbox:
        sandbox.files.write("hello.py", "print('hello')")
        print(sandbox.commands.run("python3 hello.py").stdout)
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Type, TypeVar, Union

from ._backend import Backend, gone_error, open_backend
from ._commands import CommandHandle, Commands, Pty, PtySize
from ._either import either
from ._filesystem import (
    EntryInfo, Filesystem, FilesystemEvent, FilesystemEventType, FileType, WatchHandle,
)
from ._git import Git, GitBranches, GitFileStatus, GitStatus
from .contexts import Code, Context
from .errors import NotFoundError, SessionGoneError, UnsupportedError
from .execution import Execution, ExecutionError, OutputMessage, Result
from .models import Environment, SandboxInfo, SandboxOptions, Usage

__all__ = [
    "CommandHandle", "Commands", "EntryInfo", "FileType", "Filesystem", "FilesystemEvent",
    "FilesystemEventType", "Git", "GitBranches", "GitFileStatus", "GitStatus", "Pty", "PtySize",
    "Sandbox", "WatchHandle",
]

S = TypeVar("S", bound="Sandbox")

LIFE_S = 300.0
IDLE_MAX_S = 2592000.0
# Accepted because E2B's package has them; true here whatever they say.
_IGNORED = {"secure", "allow_internet_access", "request_timeout", "logger", "debug", "headers"}


def _options(template: Optional[str], timeout: Optional[float],
             metadata: Optional[Mapping[str, str]], envs: Optional[Mapping[str, str]],
             others: Mapping[str, Any]) -> SandboxOptions:
    life = LIFE_S if timeout is None else timeout
    known = {name: others[name] for name in (
        "profile", "provider", "execution_mode", "image", "pull", "git_url", "cwd", "policy", "network",
        "limits", "queue_timeout_s") if name in others}
    for name, value in others.items():
        if name not in known and name not in _IGNORED and value is not None:
            raise UnsupportedError(
                f"{name}: sandboxes of this package have no such option; there are template, "
                "timeout, metadata, envs, profile, provider, execution_mode, image, pull, git_url, cwd, "
                "policy, network, limits, queue_timeout_s, mode, server_url and api_key", details={"field": name})
    return SandboxOptions(
        template=template or "base", metadata=dict(metadata) if metadata else None,
        env=dict(envs) if envs else None, max_life_s=life, idle_timeout_s=min(life, IDLE_MAX_S),
        **known)


class Sandbox:
    """One sandbox.

    Make it by `create`, find it by `connect`, or name it by user and thread with `for_thread`. As a
    context manager it ends the sandbox, except one of `for_thread`, which stays for the thread's
    next turn.

    `connect`, `kill`, `pause`, `resume`, `set_timeout` and `get_info` can also be called on the
    class, with an id: `Sandbox.kill(sandbox_id)`. All that reach for a server take `mode`,
    `server_url` and `api_key`, as `SandboxClient` does.
    """

    default_mode: Optional[str] = None
    default_provider: Optional[str] = None

    def __init__(self, sandbox_id: str, *, mode: Optional[str] = None,
                 server_url: Optional[str] = None, api_key: Optional[str] = None,
                 api_url: Optional[str] = None, keep: bool = False) -> None:
        """Holds a sandbox by its id, without asking for it.

        Args:
            keep: Do not end it at the end of the context.
        """
        self._backend: Backend = open_backend(mode or type(self).default_mode,
                                              server_url or api_url, api_key)
        self._id = sandbox_id
        self._keep = keep
        self._code = Code(self._backend, sandbox_id)
        self._commands = Commands(self._backend, sandbox_id)
        self._files = Filesystem(self._backend, sandbox_id)
        self._pty = Pty(self._backend, sandbox_id)
        self._git = Git(self._backend, sandbox_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id}>"

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self._id

    @property
    def commands(self) -> Commands:
        """Commands and processes."""
        return self._commands

    @property
    def files(self) -> Filesystem:
        """Files."""
        return self._files

    @property
    def pty(self) -> Pty:
        """Terminals."""
        return self._pty

    @property
    def git(self) -> Git:
        """Git repositories."""
        return self._git

    # ---- getting one ----

    @classmethod
    def create(cls: Type[S], template: Optional[str] = None, timeout: Optional[float] = None,
               metadata: Optional[Mapping[str, str]] = None,
               envs: Optional[Mapping[str, str]] = None, *, mode: Optional[str] = None,
               server_url: Optional[str] = None, api_key: Optional[str] = None,
               api_url: Optional[str] = None, **others: Any) -> S:
        """Makes a sandbox.

        Args:
            template: What it is made of; "base" unless told.
            timeout: It ends after so many seconds (300 unless told); see `set_timeout`.
            metadata: Strings of your own, to find it by.
            envs: Variables of all its commands.
            others: `profile`, `provider`, `execution_mode`, `image`, `git_url`, `cwd`, `policy`, `network`,
                `limits` and `queue_timeout_s`, as in `SandboxOptions`. `secure` and
                `allow_internet_access` are accepted and change nothing: what a sandbox may reach
                `network` says, without it nothing, and every call needs the key.

        Raises:
            CapacityError: No room in time.
            UnsupportedError: An option that there is not.
        """
        backend = open_backend(mode or cls.default_mode, server_url or api_url, api_key)
        others.setdefault("provider", cls.default_provider)
        info = backend.create(_options(template, timeout, metadata, envs, others))
        return cls(info.id, mode=mode, server_url=server_url or api_url, api_key=api_key)

    @classmethod
    def for_thread(cls: Type[S], user: str, thread: str, timeout: Optional[float] = None,
                   auto_retry: bool = False, template: Optional[str] = None,
                   metadata: Optional[Mapping[str, str]] = None,
                   envs: Optional[Mapping[str, str]] = None, *, mode: Optional[str] = None,
                   server_url: Optional[str] = None, api_key: Optional[str] = None,
                   **others: Any) -> S:
        """The sandbox of a user and a thread; made if there is none.

        Args:
            user: As you call the user.
            thread: As you call the conversation.
            timeout: A new one ends when nobody has used it for so many seconds (1800 unless told).
            auto_retry: If the last one was lost or has expired, make a fresh one.
            template: And the others: as for `create`, for a new one.

        Raises:
            SessionGoneError: The last one was lost or has expired, and `auto_retry` was not given.
        """
        backend = open_backend(mode or cls.default_mode, server_url, api_key)
        others.setdefault("provider", cls.default_provider)
        options = _options(template, None, metadata, envs, others)
        options.max_life_s = None
        options.idle_timeout_s = timeout
        info = backend.get_or_create(user, thread, options, auto_retry=auto_retry)
        return cls(info.id, mode=mode, server_url=server_url, api_key=api_key, keep=True)

    @classmethod
    def list(cls, metadata: Optional[Mapping[str, str]] = None, state: Optional[str] = None, *,
             mode: Optional[str] = None, server_url: Optional[str] = None,
             api_key: Optional[str] = None) -> List[SandboxInfo]:
        """The sandboxes that there are: with this metadata, in this state."""
        backend = open_backend(mode or cls.default_mode, server_url, api_key)
        return [*backend.list(metadata=metadata, state=state)]

    @either
    def connect(self, timeout: Optional[float] = None) -> Sandbox:
        """Makes sure that it is there and runs; one that is paused is resumed.

        `Sandbox.connect(sandbox_id, timeout)` gives one that was made elsewhere.
        """
        info = self._backend.find(self._id)
        if info.state in ("gone", "stopping"):
            raise gone_error(info)
        if info.state == "paused":
            self._backend.resume(self._id)
        if timeout is not None:
            self.set_timeout(timeout)
        return self

    @connect.by_id
    def _connect(cls: Type[S], sandbox_id: str, timeout: Optional[float] = None,
                 **opts: Any) -> S:
        box = cls(sandbox_id, **opts)
        box.connect(timeout)
        return box

    # ---- its life ----

    @either
    def kill(self) -> bool:
        """Ends it with all that is in it. False when there was none."""
        return self._backend.end(self._id)

    @kill.by_id
    def _kill(cls: Type[S], sandbox_id: str, **opts: Any) -> bool:
        return cls(sandbox_id, **opts).kill()

    @either
    def set_timeout(self, timeout: float) -> None:
        """It ends so many seconds from now, whatever was said before."""
        self._backend.extend(self._id, expires_in_s=timeout,
                             idle_timeout_s=min(timeout, IDLE_MAX_S))

    @set_timeout.by_id
    def _set_timeout(cls: Type[S], sandbox_id: str, timeout: float, **opts: Any) -> None:
        cls(sandbox_id, **opts).set_timeout(timeout)

    @either
    def pause(self, keep_memory: bool = True) -> bool:
        """Freezes every process; the clocks stand still until `connect` or `resume`."""
        if not keep_memory:
            raise UnsupportedError("keep_memory: a pause keeps the processes; kill what is not "
                                   "needed before it", details={"field": "keep_memory"})
        self._backend.pause(self._id)
        return True

    @pause.by_id
    def _pause(cls: Type[S], sandbox_id: str, keep_memory: bool = True, **opts: Any) -> bool:
        return cls(sandbox_id, **opts).pause(keep_memory)

    @either
    def resume(self) -> bool:
        """Lets the processes go on."""
        self._backend.resume(self._id)
        return True

    @resume.by_id
    def _resume(cls: Type[S], sandbox_id: str, **opts: Any) -> bool:
        return cls(sandbox_id, **opts).resume()

    @either
    def move(self, provider: str, give_up: bool = False) -> SandboxInfo:
        """Moves it to another provider of the server, with its files, directory and environment.

        Args:
            provider: Its name, such as "local" or "jail".
            give_up: End what runs in it; otherwise that is a reason not to move.

        Raises:
            ConflictError: Something runs in it.
            DeniedError: It was made with the mode `sandbox`, and would be isolated less.
        """
        return self._backend.move_sandbox(self._id, provider, give_up=give_up)

    @move.by_id
    def _move(cls: Type[S], sandbox_id: str, provider: str, give_up: bool = False,
              **opts: Any) -> SandboxInfo:
        return cls(sandbox_id, **opts).move(provider, give_up)

    @either
    def get_info(self) -> SandboxInfo:
        """What it is, and how long it stays."""
        return self._backend.find(self._id)

    @get_info.by_id
    def _get_info(cls: Type[S], sandbox_id: str, **opts: Any) -> SandboxInfo:
        return cls(sandbox_id, **opts).get_info()

    def is_running(self, request_timeout: Optional[float] = None) -> bool:
        """Whether it is there and not paused."""
        try:
            return self._backend.find(self._id).state == "running"
        except (NotFoundError, SessionGoneError):
            return False

    def get_metrics(self) -> List[Usage]:
        """What it uses now."""
        return [self._backend.usage(self._id)]

    # ---- the rest ----

    def get_host(self, port: int) -> str:
        """Where a port of it is reached: put `http://` before it. The request needs the key."""
        return self._backend.host(self._id, port)

    def get_url(self, port: int, expires_in: float = 3600) -> str:
        """A URL that reaches a port of it without a key, until it expires."""
        return self._backend.preview(self._id, port, expires_in_s=expires_in).url

    def get_env(self) -> Environment:
        """The variables and the directory that commands find."""
        return self._backend.environment(self._id)

    def set_env(self, env: Optional[Mapping[str, Optional[str]]] = None,
                cwd: Optional[str] = None) -> Environment:
        """Changes them; a value of None removes the variable."""
        return self._backend.set_environment(self._id, env, cwd)

    # ---- code ----

    def run_code(self, code: str, language: Optional[str] = None,
                 context: Optional[Union[Context, str]] = None,
                 on_stdout: Optional[Callable[[OutputMessage], object]] = None,
                 on_stderr: Optional[Callable[[OutputMessage], object]] = None,
                 on_result: Optional[Callable[[Result], object]] = None,
                 on_error: Optional[Callable[[ExecutionError], object]] = None,
                 envs: Optional[Mapping[str, str]] = None, timeout: Optional[float] = 600, *,
                 keep_before: bool = False) -> Execution:
        """Runs code in an interpreter that stays: variables hold for the next call.

        Args:
            code: Any number of lines. The value of the last expression is a result.
            language: `python` (unless told), `javascript`, `typescript`, `bash`, or what else the
                sandbox has. Each language has one default context, in which it runs.
            context: The context in which it runs instead.
            on_stdout: Called with each piece of output as it comes.
            on_stderr: Likewise.
            on_result: Called with each result as it comes: a table, a picture.
            on_error: Called with the exception that ended it.
            envs: Variables that it finds in its environment, and the next code does not.
            timeout: In seconds; 0 or None is no limit. The code is then interrupted, and variables
                stay; code that does not heed it is killed with its interpreter. `reason` of the
                result is `timeout`.
            keep_before: Keep the context as it is now, so that `Context.undo` can bring it back.

        Raises:
            UnsupportedError: The sandbox does not have that language; the message says what to
                install.
        """
        return self._code.run(code, language, context, on_stdout, on_stderr, on_result, on_error,
                              envs, timeout, keep_before)

    def create_code_context(self, cwd: Optional[str] = None, language: Optional[str] = None,
                            envs: Optional[Mapping[str, str]] = None) -> Context:
        """Makes a context of its own, for `run_code`.

        Args:
            cwd: Where it starts; the sandbox's directory unless told.
            language: `python` unless told.
            envs: Variables of its environment.
        """
        return self._code.create(cwd, language, envs)

    def list_code_contexts(self) -> List[Context]:
        """The contexts that there are, in the order in which they were made."""
        return self._code.list()

    def restart_code_context(self, context: Union[Context, str]) -> None:
        """Starts a context anew, without its variables."""
        self._code.restart(context)

    def remove_code_context(self, context: Union[Context, str]) -> None:
        """Ends a context."""
        self._code.remove(context)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the sandbox; one of `for_thread` stays."""
        if not self._keep:
            self._backend.end(self._id)
