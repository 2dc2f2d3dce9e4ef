"""The coordinator: one object that runs an agent's Python in the sandbox of the current request.

    coordinator = get_sandbox_coordinator()
    coordinator.set_request_context("request-7")
    coordinator.ensure_session_with_data("sales.csv")
    result = coordinator.execute_code("import csv; print(len(list(csv.reader(open('sales.csv')))))")
    print(result["success"], result["output"])
    coordinator.cleanup_session("request-7")

Also here: `get_sandbox` and `get_sandbox_info`, which say what is configured, and `create_sandbox`.
"""

from __future__ import annotations

import contextvars
import logging
import os
import posixpath
import threading
import time
import uuid
import warnings
from typing import Dict, List, Mapping, Optional, Tuple, Type, TypedDict, Union

from ._backend import MODES, Backend, choose_key, choose_mode, choose_url, open_backend
from ._cancel import in_thread
from .errors import ConflictError, InvalidArgumentError, NotFoundError, PaddockError
from .errors import SessionGoneError
from .kernel import ENDING_S, Kernel
from .models import CodeResult, ExecutionResult, SandboxInfo, SandboxOptions
from .sandbox import Sandbox

__all__ = [
    "LocalSandbox", "ProviderSandbox", "RemoteSandbox", "SandboxCoordinator", "create_sandbox",
    "get_global_session", "get_sandbox", "get_sandbox_coordinator", "get_sandbox_info",
    "reset_coordinator",
]

logger = logging.getLogger("paddock")

USER = "coordinator"


class _Session:
    def __init__(self, sandbox_id: str, kernel: Kernel) -> None:
        self.sandbox_id = sandbox_id
        self.kernel = kernel
        # What was uploaded, so that a session that is made anew has it as well.
        self.data: List[str] = []
        # It stands in for one that was lost, and nobody was told yet.
        self.untold = False


class SandboxCoordinator:
    """Runs Python for requests, each in a sandbox of its own, whose variables and files stay.

    Methods report failure in what they give back, as the older coordinators did, and do not raise;
    `last_error` has the error. Thread-safe: which request is the current one is a matter of each
    thread and each asyncio task. A thread that set none uses the one that was set last.

    Args:
        mode: "local" or "remote"; without it, as SANDBOX_MODE says.
        server_url: See `SandboxClient`.
        api_key: See `SandboxClient`.
        options: What new sandboxes should be.
        code_timeout: After so many seconds code is interrupted.
    """

    def __init__(self, mode: Optional[str] = None, server_url: Optional[str] = None,
                 api_key: Optional[str] = None, *, options: Optional[SandboxOptions] = None,
                 code_timeout: float = 600) -> None:
        self.mode = choose_mode(mode, server_url)
        self.code_timeout = code_timeout
        self.last_error: Optional[PaddockError] = None
        self._backend: Backend = open_backend(self.mode, server_url, api_key)
        self._options = options or SandboxOptions(idle_timeout_s=3600)
        self._lock = threading.Lock()
        self._making: Dict[str, threading.Lock] = {}
        self._sessions: Dict[str, _Session] = {}
        self._latest = f"request-{uuid.uuid4().hex[:12]}"
        self._current: contextvars.ContextVar[Optional[str]] = contextvars.ContextVar(
            f"paddock_request_{id(self)}", default=None)

    # ---- requests ----

    def set_request_context(self, request_id: str) -> None:
        """From now on, calls of this thread or task are for that request."""
        if not request_id:
            raise InvalidArgumentError("request_id: must not be empty",
                                       details={"field": "request_id"})
        self._current.set(request_id)
        with self._lock:
            self._latest = request_id

    @property
    def request_id(self) -> str:
        """The current request."""
        return self._current.get() or self._latest

    @property
    def session_id(self) -> Optional[str]:
        """The id of the current request's sandbox, if it has one."""
        session = self._sessions.get(self.request_id)
        return session.sandbox_id if session else None

    def ensure_session(self) -> bool:
        """Makes the sandbox of the current request, if it has none or it is gone (the next
        `execute_code` then says `state_lost`). False when that failed."""
        try:
            self._verified()
        except PaddockError as error:
            return self._failed("ensure_session", error)
        return True

    def ensure_session_with_data(self, csv_path: str) -> bool:
        """Like `ensure_session`, with a file of this machine in it.

        The code finds it by its name in the working directory, /workspace, and if `csv_path` is
        relative, by that path too. False when the file or the sandbox could not be had.
        """
        if not os.path.isfile(csv_path):
            return self._failed("ensure_session_with_data", NotFoundError(
                f"csv_path: there is no file '{csv_path}' on this machine",
                details={"field": "csv_path"}))
        try:
            session = self._verified()
            self._upload(session.sandbox_id, csv_path)
        except (PaddockError, OSError) as error:
            return self._failed("ensure_session_with_data", error)
        if csv_path not in session.data:
            session.data.append(csv_path)
        return True

    def execute_code(self, code: str, description: str = "") -> CodeResult:
        """Runs Python in the sandbox of the current request; its variables stay for the next call.

        The result has `success`, `output` (standard output) and `error` (the traceback, or what
        else went wrong), as attributes and like a dictionary. When the interpreter or the whole
        sandbox was lost, `state_lost` is true and `error` says what is gone.

        Args:
            code: Python, any number of lines.
            description: For the log.
        """
        logger.info("execute_code: request=%s %s", self.request_id, description or "code")
        try:
            session = self._session()
            result = session.kernel.run(code, self.code_timeout)
            if session.untold:
                session.untold = False
                result.state_lost = True
                result.stderr += ("[paddock] the sandbox was lost since the last call; this ran in "
                                  "a new one, without the variables and files of earlier calls\n")
            return result
        except (SessionGoneError, NotFoundError) as gone:
            # The sandbox is made anew, but the code is not run again by itself: what it relied on
            # is gone, and whoever wrote it must know.
            self._failed("execute_code", gone)
            return CodeResult(False, "", self._replace(gone), state_lost=True)
        except (PaddockError, OSError) as error:
            self._failed("execute_code", error)
            return CodeResult(False, "", str(error))

    def cleanup_session(self, request_id: Optional[str] = None) -> None:
        """Ends the sandbox of a request (without an id, the current one's)."""
        name = request_id or self.request_id
        with self._lock:
            session = self._sessions.pop(name, None)
            self._making.pop(name, None)
        try:
            if session is None:
                # It may have been made by a process that is no more.
                self._backend.end(self._backend.find_session(USER, name).id)
            else:
                self._backend.end(session.sandbox_id)
        except NotFoundError:
            pass
        except PaddockError as error:
            self._failed("cleanup_session", error)

    def close(self) -> None:
        """Ends the sandboxes of all requests."""
        for name in list(self._sessions):
            self.cleanup_session(name)

    # ---- how ----

    def _failed(self, what: str, error: Exception) -> bool:
        if not isinstance(error, PaddockError):
            error = PaddockError(str(error), code="local_file")
        self.last_error = error
        logger.error("%s: request=%s: %s; %s", what, self.request_id, error, error.remedy)
        return False

    def _session(self, anew: bool = False) -> _Session:
        name = self.request_id
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            session = self._sessions.get(name)
            if session is not None and not anew:
                return session
            info = self._get_or_create(name)
            made = _Session(info.id, Kernel(self._backend, info.id, cwd="/workspace"))
            if session is not None:
                made.data = session.data
                for path in made.data:
                    self._upload(made.sandbox_id, path)
            self._sessions[name] = made
            return made

    def _get_or_create(self, name: str) -> SandboxInfo:
        # One that is just being ended stands in the way until it is gone.
        deadline = time.monotonic() + ENDING_S
        while True:
            try:
                return self._backend.get_or_create(USER, name, self._options, auto_retry=True)
            except (ConflictError, SessionGoneError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _verified(self) -> _Session:
        session = self._session()
        try:
            info = self._backend.find(session.sandbox_id)
            if info.state not in ("gone", "stopping"):
                return session
        except NotFoundError:
            pass
        session = self._session(anew=True)
        session.untold = True
        return session

    def _replace(self, gone: PaddockError) -> str:
        text = f"{gone.message}; the code did not run to its end, its variables and files are gone"
        try:
            session = self._session(anew=True)
        except (PaddockError, OSError) as error:
            return f"{text}; a new sandbox could not be made: {error}"
        text += "; a new sandbox was made"
        if session.data:
            names = ", ".join(os.path.basename(path) for path in session.data)
            text += f" and the data put into it again ({names})"
        return text + "; run the code again, from the beginning"

    def _upload(self, sandbox_id: str, path: str) -> None:
        name = os.path.basename(path)
        with open(path, "rb") as data:
            entry = self._backend.write_file(sandbox_id, f"/workspace/{name}", data)
        inside = posixpath.normpath(path)
        if os.path.isabs(path) or inside.startswith("../") or inside == name:
            return
        self._backend.mkdir(sandbox_id, posixpath.dirname(f"/workspace/{inside}"))
        try:
            self._backend.remove(sandbox_id, f"/workspace/{inside}")
        except NotFoundError:
            pass
        self._backend.exec(sandbox_id, ["ln", "-s", "--", entry.path, f"/workspace/{inside}"])


_coordinator: Optional[SandboxCoordinator] = None
_coordinator_lock = threading.Lock()


def get_sandbox_coordinator(mode: Optional[str] = None) -> SandboxCoordinator:
    """The coordinator of this process, made at the first call.

    Args:
        mode: "local" or "remote"; without it, SANDBOX_MODE. A process has one coordinator:
            another mode than that of the one that is there is warned of, and has no effect before
            `reset_coordinator`.

    Raises:
        ValueError: The mode is unknown; the message lists the valid ones.
    """
    global _coordinator
    with _coordinator_lock:
        chosen = choose_mode(mode)
        if _coordinator is None:
            _coordinator = SandboxCoordinator(chosen)
        elif mode is not None and chosen != _coordinator.mode:
            warnings.warn(
                f"this process has a coordinator of mode '{_coordinator.mode}' already; call "
                f"reset_coordinator() before asking for '{mode}'", RuntimeWarning, stacklevel=2)
        return _coordinator


def reset_coordinator() -> None:
    """Forgets the coordinator of this process, so that the next call makes another one. Its
    sandboxes are ended."""
    global _coordinator
    with _coordinator_lock:
        old, _coordinator = _coordinator, None
    if old is not None:
        old.close()


def get_global_session() -> SandboxCoordinator:
    """Deprecated: use `get_sandbox_coordinator`, which it is another name for."""
    warnings.warn("get_global_session() is deprecated; use paddock.get_sandbox_coordinator()",
                  DeprecationWarning, stacklevel=2)
    return get_sandbox_coordinator()


# ---- what is configured ----


class LocalSandbox(Sandbox):
    """`Sandbox` in mode "local"."""

    default_mode = "local"


class RemoteSandbox(Sandbox):
    """`Sandbox` in mode "remote"."""

    default_mode = "remote"


class SandboxConfiguration(TypedDict, total=False):
    """What `get_sandbox_info` tells."""

    implementation: str
    feature_flag_enabled: bool
    reason: str
    config: Dict[str, str]


def _selected() -> Tuple[Type[Sandbox], bool, str]:
    mode = choose_mode()
    said = os.environ.get("SANDBOX_MODE")
    url = next((n for n in ("PADDOCK_URL", "SANDBOX_URL") if os.environ.get(n)), None)
    if said:
        reason = f"SANDBOX_MODE is '{said}'"
        if mode == "remote" and not url:
            reason += "; no PADDOCK_URL, so the server is expected on this machine"
    elif url:
        reason = f"{url} names a server"
    else:
        reason = "neither SANDBOX_MODE nor PADDOCK_URL is set, so sandboxes are in this process"
    return (RemoteSandbox if mode == "remote" else LocalSandbox), mode == "remote", reason


def get_sandbox() -> Type[Sandbox]:
    """The class of sandboxes that the environment asks for: `RemoteSandbox` or `LocalSandbox`.

    Raises:
        ValueError: SANDBOX_MODE is unknown; the message lists the valid ones.
    """
    return _selected()[0]


def get_sandbox_info() -> SandboxConfiguration:
    """Which class `get_sandbox` gives, and why.

    `implementation` is its name, `feature_flag_enabled` whether the environment asks for a server,
    `reason` says why, and `config` is what will be used.
    """
    chosen, flag, reason = _selected()
    config = {"mode": "remote" if flag else "local"}
    if flag:
        config["server_url"] = choose_url()
        config["api_key"] = "set" if choose_key() else "not set"
    return {"implementation": chosen.__name__, "feature_flag_enabled": flag, "reason": reason,
            "config": config}


# ---- create_sandbox ----

class ProviderSandbox:
    """A sandbox with the few methods that a provider of the older systems had. All are
    asynchronous; whatever needs a sandbox before `create` was called makes one."""

    def __init__(self, provider: str = "auto", mode: Optional[str] = None,
                 server_url: Optional[str] = None, api_key: Optional[str] = None) -> None:
        self.provider = provider
        self.sandbox_id: Optional[str] = None
        self._backend = open_backend(mode, server_url, api_key)
        self._lock = threading.Lock()
        self._kernel: Optional[Kernel] = None

    async def create(self, template: Optional[str] = None, timeout: Optional[float] = None, *,
                     env: Optional[Mapping[str, str]] = None,
                     metadata: Optional[Mapping[str, str]] = None) -> str:
        """Makes the sandbox and gives its id.

        Args:
            template: `default`, `base`, `restricted`, or what else the server has.
            timeout: After so many seconds it ends.
            env: Variables of all commands.
            metadata: Strings of your own.
        """
        if self.sandbox_id is not None:
            raise ConflictError(f"this object has a sandbox already, {self.sandbox_id}; delete it "
                                "first, or call create_sandbox again")
        options = SandboxOptions(
            template=template, max_life_s=timeout, env=dict(env) if env else None,
            provider=None if self.provider == "auto" else self.provider,
            metadata=dict(metadata) if metadata else None)
        return await in_thread(lambda: self._make(options))

    def _make(self, options: SandboxOptions) -> str:
        with self._lock:
            if self.sandbox_id is None:
                self.sandbox_id = self._backend.create(options).id
            return self.sandbox_id

    def _id(self) -> str:
        return self._make(SandboxOptions(
            provider=None if self.provider == "auto" else self.provider))

    async def run_command(self, command: str, timeout: Optional[float] = 60, *,
                          cwd: Optional[str] = None,
                          env: Optional[Mapping[str, str]] = None) -> ExecutionResult:
        """Runs a line of bash; its directory and exported variables hold for the next one."""
        def call() -> ExecutionResult:
            result = self._backend.exec(self._id(), command, timeout_s=timeout, cwd=cwd, env=env)
            return ExecutionResult(
                exit_code=result.status, stdout=result.stdout, stderr=result.stderr,
                execution_time_ms=result.execution_time_ms, timed_out=result.timed_out,
                stopped_by=result.stopped_by, stdout_truncated=result.stdout_truncated,
                stderr_truncated=result.stderr_truncated, session_id=self.sandbox_id or "")
        return await in_thread(call)

    async def execute(self, code: str, timeout: Optional[float] = 600) -> CodeResult:
        """Runs Python; its variables stay for the next call."""
        def call() -> CodeResult:
            sandbox_id = self._id()
            with self._lock:
                if self._kernel is None:
                    self._kernel = Kernel(self._backend, sandbox_id)
                kernel = self._kernel
            return kernel.run(code, timeout)
        return await in_thread(call)

    async def read_file(self, path: str) -> str:
        """A file as text; what is not UTF-8 becomes U+FFFD."""
        data = await in_thread(lambda: self._backend.read_file(self._id(), path))
        return data.decode("utf-8", "replace")

    async def write_file(self, path: str, content: Union[str, bytes]) -> None:
        """Writes a file; missing directories are made."""
        await in_thread(lambda: self._backend.write_file(self._id(), path, content))

    async def get_preview_url(self, port: int, expires_in: float = 3600) -> str:
        """A URL that reaches a port of the sandbox without a key, until it expires."""
        preview = await in_thread(
            lambda: self._backend.preview(self._id(), port, expires_in_s=expires_in))
        return preview.url

    async def delete(self) -> bool:
        """Ends the sandbox. False when there was none."""
        with self._lock:
            gone, self.sandbox_id, self._kernel = self.sandbox_id, None, None
        if gone is None:
            return False
        return await in_thread(lambda: self._backend.end(str(gone)))

    async def __aenter__(self) -> ProviderSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delete()


async def create_sandbox(provider: Optional[str] = None, *, mode: Optional[str] = None,
                         server_url: Optional[str] = None,
                         api_key: Optional[str] = None) -> ProviderSandbox:
    """An object for one sandbox, which its `create` makes.

    Args:
        provider: What sandboxes are made of: "auto", or a name that the server or the library has
            (`GET /v1/providers`); or a mode, "local" or "remote". Without it, SANDBOX_PROVIDER,
            else "auto".
        mode: See `SandboxClient`, as are `server_url` and `api_key`.

    Raises:
        ValueError: The provider is unknown; the message lists the valid ones.
    """
    said = provider or os.environ.get("SANDBOX_PROVIDER") or "auto"
    chosen = said.strip().lower()
    if chosen in MODES:
        mode = mode or chosen
        chosen = "auto"
    if chosen != "auto":
        backend = open_backend(mode, server_url, api_key)
        there = await in_thread(backend.providers)
        if chosen not in there:
            raise ValueError(f"unknown sandbox provider '{said}'; valid are: "
                             f"{', '.join(['auto', *there, *MODES])}. Pass provider=..., or set "
                             "SANDBOX_PROVIDER")
    return ProviderSandbox(chosen, mode, server_url, api_key)
