"""The coordinator: one object that runs an agent's Python in the sandbox of the current request. There is
a class for each provider; `get_sandbox_coordinator` gives the one that SANDBOX_MODE names.

    coordinator = get_sandbox_coordinator()
    coordinator.set_request_context("request-7")
    coordinator.ensure_session_with_data("sales.csv")
    result = coordinator.execute_code("import csv; print(len(list(csv.reader(open('sales.csv')))))")
    print(result["success"], result["output"])
    coordinator.cleanup_session("request-7")
"""

from __future__ import annotations

import contextvars
import dataclasses
import logging
import os
import posixpath
import threading
import time
import uuid
import warnings
from typing import Dict, List, Optional, Type

from ._backend import Backend, choose_mode, choose_provider, open_backend
from ._selection import MODES, select
from .errors import ConflictError, InvalidArgumentError, NotFoundError, PaddockError
from .errors import SessionGoneError
from .kernel import ENDING_S, Kernel
from .models import CodeResult, SandboxInfo, SandboxOptions

__all__ = [
    "CloudRunJobsCoordinator", "DaytonaCoordinator", "DockerCoordinator", "E2BCoordinator",
    "FargateCoordinator", "JailCoordinator", "KubernetesCoordinator", "LocalCoordinator",
    "PodmanCoordinator", "RemoteCoordinator", "SandboxCoordinator", "get_global_session",
    "get_sandbox_coordinator", "reset_coordinator",
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
        mode: "local" or "remote"; or the name of a provider, which then makes the sandboxes; "auto"
            leaves the provider to the server, and "sandbox" asks for any that isolates. Without it,
            as SANDBOX_MODE says.
        server_url: See `SandboxClient`.
        api_key: See `SandboxClient`.
        options: What new sandboxes should be. Their provider comes before that of `mode`.
        code_timeout: After so many seconds code is interrupted.
    """

    default_mode: Optional[str] = None
    """The mode of a class that has one."""

    def __init__(self, mode: Optional[str] = None, server_url: Optional[str] = None,
                 api_key: Optional[str] = None, *, options: Optional[SandboxOptions] = None,
                 code_timeout: float = 600) -> None:
        self._check_class(mode)
        mode = mode or self.default_mode
        self.mode: str = (str(self.default_mode) if self.default_mode in MODES else
                          choose_mode(mode, server_url, may_be_provider=True))
        self.code_timeout = code_timeout
        self.last_error: Optional[PaddockError] = None
        self._backend: Backend = open_backend(self.mode, server_url, api_key)
        self._options = options or SandboxOptions(idle_timeout_s=3600)
        if self._options.provider is None:
            self._options = dataclasses.replace(self._options, provider=self._provider_of(mode))
        if self._options.execution_mode is None and _name(mode) == "sandbox":
            self._options = dataclasses.replace(self._options, execution_mode="sandbox")
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
    def provider(self) -> Optional[str]:
        """The provider that was asked for, if one was."""
        return None if self._options.provider == "auto" else self._options.provider

    @property
    def session_id(self) -> Optional[str]:
        """The id of the current request's sandbox, if it has one."""
        session = self._sessions.get(self.request_id)
        return session.sandbox_id if session else None

    @property
    def backend(self) -> Backend:
        """What carries the calls out."""
        return self._backend

    @property
    def sandbox_id(self) -> str:
        """The same; if it has none, one is made."""
        return self._session().sandbox_id

    @property
    def kernel(self) -> Kernel:
        """The interpreter of the current request's sandbox, which is made if there is none."""
        return self._session().kernel

    def replace_lost(self, gone: PaddockError) -> str:
        """Makes another sandbox for the current request, whose own is gone by that error, with the same
        data; says so in words, or why that failed."""
        return self._replace(gone)

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

    def _check_class(self, mode: Optional[str]) -> None:
        """A class takes no mode that belies its name: whoever has it may rely on that."""
        own = self.default_mode
        if not mode or own is None:
            return
        valid = (own, "auto", "sandbox") if own in MODES else (own, *MODES)
        if _name(mode) not in valid:
            raise ValueError(f"Unknown sandbox mode '{mode}' of {type(self).__name__}; valid are: "
                             f"{', '.join(valid)}")

    def _provider_of(self, mode: Optional[str]) -> Optional[str]:
        own = choose_provider(self.default_mode)
        return own or ("auto" if _name(mode) == "auto" else choose_provider(mode))

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
            made = _Session(info.id, Kernel(self._backend, info.id))
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
                info = self._backend.get_or_create(USER, name, self._options, auto_retry=True)
                self._check_provider(name, info)
                return info
            except (ConflictError, SessionGoneError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _check_provider(self, name: str, info: SandboxInfo) -> None:
        asked = self.provider
        if asked is not None and info.provider and info.provider != asked:
            warnings.warn(
                f"request '{name}' has sandbox {info.id} of provider '{info.provider}' already, and "
                f"'{asked}' was asked for: it is used as it is; call cleanup_session() before, or "
                "move it", RuntimeWarning, stacklevel=2)

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
        self._backend.exec(sandbox_id, ["ln", "-s", "--", entry.path, inside], cwd="/workspace")


class LocalCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` in mode "local": sandboxes are in this process, without a server."""

    default_mode = "local"


class RemoteCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` in mode "remote": sandboxes are at a server, which chooses the provider."""

    default_mode = "remote"


class JailCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `jail`."""

    default_mode = "jail"


class DockerCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `docker`."""

    default_mode = "docker"


class PodmanCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `podman`."""

    default_mode = "podman"


class KubernetesCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `kubernetes`."""

    default_mode = "kubernetes"


class FargateCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `fargate`."""

    default_mode = "fargate"


class CloudRunJobsCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `cloudrun`."""

    default_mode = "cloudrun"


class E2BCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `e2b`."""

    default_mode = "e2b"


class DaytonaCoordinator(SandboxCoordinator):
    """`SandboxCoordinator` of the provider `daytona`."""

    default_mode = "daytona"


_CLASSES: Dict[str, Type[SandboxCoordinator]] = {
    str(c.default_mode): c for c in (
        LocalCoordinator, RemoteCoordinator, JailCoordinator, DockerCoordinator, PodmanCoordinator,
        KubernetesCoordinator, FargateCoordinator, CloudRunJobsCoordinator, E2BCoordinator,
        DaytonaCoordinator)}

_coordinator: Optional[SandboxCoordinator] = None
_coordinator_lock = threading.Lock()


def _name(mode: Optional[str]) -> str:
    return (mode or "").strip().lower()


def _make_coordinator(mode: Optional[str]) -> SandboxCoordinator:
    where = choose_mode(mode, may_be_provider=True)
    if _name(mode) in ("auto", "sandbox"):
        return _CLASSES[where](mode)
    provider = choose_provider(mode) if mode else select(USER).provider
    return _CLASSES[provider or where]()


def has_mode(coordinator: SandboxCoordinator, mode: str) -> bool:
    """Whether a coordinator is what that mode asks for."""
    return (choose_mode(mode, may_be_provider=True) == coordinator.mode
            and choose_provider(mode) in (None, coordinator.provider))


def get_sandbox_coordinator(mode: Optional[str] = None) -> SandboxCoordinator:
    """The coordinator of this process, made at the first call: a `FargateCoordinator` in mode "fargate",
    a `LocalCoordinator` in mode "local", and so on.

    Args:
        mode: "local", "remote" or a provider's name; without it, SANDBOX_MODE. A process has one
            coordinator: another mode than that of the one that is there is warned of, and has no
            effect before `reset_coordinator`.

    Raises:
        ValueError: The mode is unknown; the message lists the valid ones.
    """
    global _coordinator
    with _coordinator_lock:
        if _coordinator is None:
            _coordinator = _make_coordinator(mode)
        elif mode is not None and not has_mode(_coordinator, mode):
            there = _coordinator.provider or _coordinator.mode
            warnings.warn(
                f"this process has a coordinator of mode '{there}' already; call "
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
