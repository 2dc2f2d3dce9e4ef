"""A sandbox client for the OpenAI Agents SDK (`agents.sandbox`, from 0.22 on; Python 3.10).

    from agents.run import RunConfig
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from paddock.openai_agents import PaddockSandboxClient

    run_config = RunConfig(sandbox=SandboxRunConfig(client=PaddockSandboxClient()))
    await Runner.run(SandboxAgent(name="coder", model=model), "...", run_config=run_config)

A session of the SDK is a sandbox. Its state can be serialized and resumed in another process. Mounts
of buckets are refused: nothing is mounted in sandboxes.
"""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Dict, List, Literal, Optional, Tuple, Union
from urllib.parse import urlsplit

try:
    from agents.sandbox.errors import (
        ExecTimeoutError, ExecTransportError, ExposedPortUnavailableError, MountConfigError,
        WorkspaceArchiveReadError, WorkspaceArchiveWriteError, WorkspaceReadNotFoundError,
        WorkspaceStartError, WorkspaceWriteTypeError,
    )
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session import SandboxSession, SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.dependencies import Dependencies
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
except ImportError as _error:
    raise ImportError("the client needs openai-agents with agents.sandbox, which is not installed "
                      f"({_error}): pip install 'paddock[agents]'") from None

from ._backend import Backend, open_backend
from ._cancel import in_thread
from .errors import NotFoundError, PaddockError, SessionGoneError
from .models import SandboxOptions

__all__ = [
    "PaddockSandboxClient", "PaddockSandboxClientOptions", "PaddockSandboxSession",
    "PaddockSandboxSessionState",
]

IDLE_S = 1800.0
ARCHIVE_S = 300.0
_USERS = ("root", "user")


class PaddockSandboxClientOptions(BaseSandboxClientOptions):
    """What a new sandbox should be."""

    type: Literal["paddock"] = "paddock"
    template: Optional[str] = None
    env: Optional[Dict[str, str]] = None
    metadata: Optional[Dict[str, str]] = None
    idle_timeout_s: float = IDLE_S
    """It ends when nobody has used it for so long."""
    exposed_ports: Tuple[int, ...] = ()
    """The ports that `resolve_exposed_port` may be asked for."""


class PaddockSandboxSessionState(SandboxSessionState):
    """What is kept of a session, to resume it."""

    type: Literal["paddock"] = "paddock"
    sandbox_id: str
    template: Optional[str] = None
    env: Optional[Dict[str, str]] = None
    metadata: Optional[Dict[str, str]] = None
    idle_timeout_s: float = IDLE_S


def _name(user: Union[str, User, None]) -> Optional[str]:
    return user.name if isinstance(user, User) else user


class PaddockSandboxSession(BaseSandboxSession):
    """A session that is a sandbox. `PaddockSandboxClient` makes it.

    Paths are held against the workspace by their names alone. A link may lead out of it, but not out
    of the sandbox, where nothing else is.
    """

    state: PaddockSandboxSessionState

    def __init__(self, *, state: PaddockSandboxSessionState, backend: Backend) -> None:
        self.state = state
        self._backend = backend

    # ---- life ----

    async def _prepare_backend_workspace(self) -> None:
        root = self._workspace_root_path()
        try:
            await in_thread(lambda: self._backend.mkdir(self.state.sandbox_id, root.as_posix()))
        except PaddockError as error:
            raise WorkspaceStartError(path=root, cause=error, message=str(error)) from error

    async def running(self) -> bool:
        """Whether the sandbox is there and not paused."""
        try:
            info = await in_thread(lambda: self._backend.find(self.state.sandbox_id))
        except (NotFoundError, SessionGoneError):
            return False
        return info.state == "running"

    # ---- commands ----

    async def _exec_internal(self, *command: Union[str, Path],
                             timeout: Optional[float] = None) -> ExecResult:
        argv = [str(word) for word in command]
        user: Optional[str] = None
        # How the SDK says who runs it; the server can do that without sudo.
        if argv[:2] == ["sudo", "-u"] and argv[3:4] == ["--"] and argv[2] in _USERS:
            user, argv = argv[2], argv[4:]
        env = await self.state.manifest.environment.resolve()
        out: List[bytes] = []
        err: List[bytes] = []
        try:
            result = await in_thread(lambda: self._backend.exec(
                self.state.sandbox_id, argv, cwd=self.state.manifest.root, env=env or None,
                user=user, timeout_s=timeout, on_stdout=out.append, on_stderr=err.append))
        except PaddockError as error:
            raise ExecTransportError(
                command=argv, cause=error, message=str(error), retryable=error.retryable,
                context={"backend": "paddock", "sandbox_id": self.state.sandbox_id}) from error
        if result.timed_out:
            raise ExecTimeoutError(command=argv, timeout_s=timeout)
        return ExecResult(stdout=b"".join(out), stderr=b"".join(err), exit_code=result.status)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            preview = await in_thread(
                lambda: self._backend.preview(self.state.sandbox_id, port))
            host = await in_thread(lambda: self._backend.host(self.state.sandbox_id, port))
        except PaddockError as error:
            raise ExposedPortUnavailableError(
                port=port, exposed_ports=self.state.exposed_ports, reason="backend_unavailable",
                cause=error, retryable=error.retryable) from error
        url = urlsplit(preview.url)
        reached = urlsplit(f"{url.scheme}://{host}")
        if reached.path not in ("", "/"):
            # The endpoint of the SDK has no path, and without a domain a port is one.
            raise ExposedPortUnavailableError(
                port=port, exposed_ports=self.state.exposed_ports, reason="backend_unavailable",
                context={"hint": "the server needs the setting `domain`, so that ports have host "
                                 "names"})
        tls = url.scheme == "https"
        return ExposedPortEndpoint(host=reached.hostname or "",
                                   port=reached.port or (443 if tls else 80), tls=tls,
                                   query=url.query)

    # ---- files ----

    async def read(self, path: Path, *, user: Union[str, User, None] = None) -> io.IOBase:
        """A file of the workspace."""
        chosen = await self._validate_path_access(path)
        try:
            data = await in_thread(lambda: self._backend.read_file(
                self.state.sandbox_id, chosen.as_posix(), user=_name(user)))
        except NotFoundError as error:
            raise WorkspaceReadNotFoundError(path=chosen, cause=error) from error
        except PaddockError as error:
            raise WorkspaceArchiveReadError(path=chosen, cause=error,
                                            retryable=error.retryable) from error
        return io.BytesIO(data)

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        chosen = await self._validate_path_access(path)
        try:
            return await in_thread(lambda: self._backend.read_file(
                self.state.sandbox_id, chosen.as_posix(), length=max_bytes))
        except NotFoundError:
            raise WorkspaceReadNotFoundError(path=path) from None

    async def write(self, path: Path, data: io.IOBase, *,
                    user: Union[str, User, None] = None) -> None:
        """Writes a file; missing directories are made."""
        chosen = await self._validate_path_access(path, for_write=True)
        payload = _bytes(chosen, data)
        try:
            await in_thread(lambda: self._backend.write_file(
                self.state.sandbox_id, chosen.as_posix(), payload, user=_name(user)))
        except PaddockError as error:
            raise WorkspaceArchiveWriteError(path=chosen, cause=error, message=str(error),
                                             retryable=error.retryable) from error

    # ---- the whole workspace ----

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar."""
        root = self._workspace_root_path()
        excludes = [f"--exclude=./{path.as_posix()}"
                    for path in sorted(self._persist_workspace_skip_relpaths())]
        archive = f"/tmp/workspace-{self.state.session_id.hex}.tar"
        await self._tar(root, ["tar", "-c", "-f", archive, "--no-wildcards", *excludes, "."],
                        WorkspaceArchiveReadError)
        try:
            data = await in_thread(
                lambda: self._backend.read_file(self.state.sandbox_id, archive))
        except PaddockError as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        finally:
            await self._forget(archive)
        return io.BytesIO(data)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Fills the workspace from such a tar."""
        root = self._workspace_root_path()
        payload = _bytes(root, data)
        try:
            validate_tar_bytes(payload, allow_external_symlink_targets=False)
        except UnsafeTarMemberError as error:
            raise WorkspaceArchiveWriteError(
                path=root, cause=error, context={"reason": "unsafe_or_invalid_tar",
                                                 "member": error.member}) from error
        archive = f"/tmp/workspace-{self.state.session_id.hex}.tar"
        try:
            await in_thread(lambda: self._backend.mkdir(self.state.sandbox_id, root.as_posix()))
            await in_thread(
                lambda: self._backend.write_file(self.state.sandbox_id, archive, payload))
            await self._tar(root, ["tar", "-x", "-f", archive], WorkspaceArchiveWriteError)
        except PaddockError as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        finally:
            await self._forget(archive)

    async def _tar(self, root: Path, argv: List[str],
                   problem: Union[type[WorkspaceArchiveReadError],
                                  type[WorkspaceArchiveWriteError]]) -> None:
        result = await self._exec_internal(*argv, timeout=ARCHIVE_S)
        if not result.ok():
            raise problem(path=root, context={
                "exit_code": result.exit_code, "stderr": result.stderr.decode(errors="replace")})

    async def _forget(self, path: str) -> None:
        try:
            await in_thread(lambda: self._backend.remove(self.state.sandbox_id, path))
        except PaddockError:
            pass  # it was not made, or the sandbox is gone


def _bytes(path: Path, data: io.IOBase) -> bytes:
    payload = data.read()
    if isinstance(payload, str):
        payload = payload.encode()
    if not isinstance(payload, (bytes, bytearray)):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(payload).__name__)
    return bytes(payload)


class PaddockSandboxClient(BaseSandboxClient[Optional[PaddockSandboxClientOptions]]):
    """Makes, resumes and ends sandboxes for the SDK.

    Args:
        mode: And `server_url`, `api_key`: see `SandboxClient`.
    """

    backend_id = "paddock"
    supports_default_options = True

    def __init__(self, *, mode: Optional[str] = None, server_url: Optional[str] = None,
                 api_key: Optional[str] = None,
                 instrumentation: Optional[Instrumentation] = None,
                 dependencies: Optional[Dependencies] = None) -> None:
        self._backend = open_backend(mode, server_url, api_key)
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(self, *, snapshot: Union[SnapshotSpec, SnapshotBase, None] = None,
                     manifest: Optional[Manifest] = None,
                     options: Optional[PaddockSandboxClientOptions] = None) -> SandboxSession:
        """Makes a sandbox. It is started, and the manifest applied, by `async with`."""
        wanted = options or PaddockSandboxClientOptions()
        laid_out = manifest if manifest is not None else Manifest()
        self._validate_manifest_for_create(laid_out)
        for _mount, path in laid_out.mount_targets():
            raise MountConfigError(
                message=f"{path}: nothing can be mounted in sandboxes",
                context={"backend": "paddock", "mount_path": str(path)})
        session_id = uuid.uuid4()
        state = PaddockSandboxSessionState(
            session_id=session_id, manifest=laid_out,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=wanted.exposed_ports, sandbox_id="", template=wanted.template,
            env=wanted.env, metadata=wanted.metadata, idle_timeout_s=wanted.idle_timeout_s)
        state.sandbox_id = await self._make(state)
        return self._wrap_session(PaddockSandboxSession(state=state, backend=self._backend),
                                  instrumentation=self._instrumentation)

    async def _make(self, state: PaddockSandboxSessionState) -> str:
        made = await in_thread(lambda: self._backend.create(SandboxOptions(
            template=state.template, env=state.env, idle_timeout_s=state.idle_timeout_s,
            metadata={**(state.metadata or {}), "session_id": str(state.session_id)})))
        return made.id

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session of that state: its sandbox, or a new one that is filled from the snapshot."""
        if not isinstance(state, PaddockSandboxSessionState):
            raise TypeError("PaddockSandboxClient.resume needs a PaddockSandboxSessionState, not "
                            f"{type(state).__name__}")
        state.assert_path_grants_rebound()
        preserved = await in_thread(lambda: self._reach(state.sandbox_id))
        if not preserved:
            state.sandbox_id = await self._make(state)
            state.workspace_root_ready = False
        inner = PaddockSandboxSession(state=state, backend=self._backend)
        inner._set_start_state_preserved(preserved, system=preserved)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def _reach(self, sandbox_id: str) -> bool:
        try:
            info = self._backend.find(sandbox_id)
            if info.state == "paused":
                info = self._backend.resume(sandbox_id)
        except (NotFoundError, SessionGoneError):
            return False
        return info.state not in ("gone", "stopping")

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the sandbox of a session."""
        inner = session._inner
        if not isinstance(inner, PaddockSandboxSession):
            raise TypeError("PaddockSandboxClient.delete needs a session of this client")
        await in_thread(lambda: self._backend.end(inner.state.sandbox_id))
        return session

    def deserialize_session_state(self, payload: Dict[str, object]) -> SandboxSessionState:
        """A state from what `serialize_session_state` gave."""
        return self._deserialize_session_state_payload(payload, PaddockSandboxSessionState)
