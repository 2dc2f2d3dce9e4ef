"""Which sandboxes are meant: `get_sandbox`, `get_sandbox_info` and `create_sandbox`, as older systems
call them, and a class for each provider.

    sandbox_class = get_sandbox()                      # what the environment asks for
    print(get_sandbox_info()["reason"])
    with DockerSandbox.create() as sandbox:            # a sandbox that the provider docker makes
        sandbox.commands.run("make test")
    remote = await create_sandbox(provider="docker")   # the same by asynchronous methods
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Dict, Mapping, Optional, Type, TypedDict, TypeVar, Union

from ._backend import Backend, choose_key, choose_mode, choose_url, open_backend
from ._cancel import in_thread
from ._selection import MODES, PROJECT, Selection, select
from .errors import ConflictError
from .kernel import Kernel
from .models import CodeResult, ExecutionResult, SandboxOptions
from .sandbox import Sandbox

__all__ = [
    "CloudRunJobsSandbox", "DaytonaSandbox", "DockerSandbox", "E2BSandbox", "FargateSandbox",
    "JailSandbox", "KubernetesSandbox", "LocalSandbox", "PodmanSandbox", "ProviderSandbox",
    "RemoteSandbox", "create_sandbox", "get_sandbox", "get_sandbox_info",
]

logger = logging.getLogger("paddock")

S = TypeVar("S", bound="Sandbox")


class LocalSandbox(Sandbox):
    """`Sandbox` in mode "local"."""

    default_mode = "local"


class RemoteSandbox(Sandbox):
    """`Sandbox` in mode "remote"."""

    default_mode = "remote"


class _Provided(Sandbox):
    """`Sandbox` of one provider. Without an id, the class gives the asynchronous object of
    `create_sandbox` instead, as the classes of older systems do: `E2BSandbox()`."""

    def __new__(cls, sandbox_id: Optional[str] = None, **opts: Any) -> Any:
        if sandbox_id is None:
            return ProviderSandbox(str(cls.default_provider), **opts)
        return super().__new__(cls)


class JailSandbox(_Provided):
    """`Sandbox` of the provider `jail`."""

    default_provider = "jail"


class DockerSandbox(_Provided):
    """`Sandbox` of the provider `docker`."""

    default_provider = "docker"


class PodmanSandbox(_Provided):
    """`Sandbox` of the provider `podman`."""

    default_provider = "podman"


class KubernetesSandbox(_Provided):
    """`Sandbox` of the provider `kubernetes`."""

    default_provider = "kubernetes"


class FargateSandbox(_Provided):
    """`Sandbox` of the provider `fargate`."""

    default_provider = "fargate"


class CloudRunJobsSandbox(_Provided):
    """`Sandbox` of the provider `cloudrun`."""

    default_provider = "cloudrun"


class E2BSandbox(_Provided):
    """`Sandbox` of the provider `e2b`."""

    default_provider = "e2b"


class DaytonaSandbox(_Provided):
    """`Sandbox` of the provider `daytona`."""

    default_provider = "daytona"


_CLASSES: Dict[Optional[str], Type[Sandbox]] = {
    c.default_provider: c for c in (
        JailSandbox, DockerSandbox, PodmanSandbox, KubernetesSandbox, FargateSandbox,
        CloudRunJobsSandbox, E2BSandbox, DaytonaSandbox)}


class SandboxConfiguration(TypedDict, total=False):
    """What `get_sandbox_info` tells."""

    implementation: str
    feature_flag_enabled: bool
    reason: str
    config: Dict[str, str]


def _where() -> str:
    said = os.environ.get("SANDBOX_MODE")
    url = next((n for n in ("PADDOCK_URL", "SANDBOX_URL") if os.environ.get(n)), None)
    if said and said.strip().lower() in MODES:
        reason = f"SANDBOX_MODE is '{said}'"
        if choose_mode() == "remote" and not url:
            reason += "; no PADDOCK_URL, so the server is expected on this machine"
        return reason
    if url:
        return f"{url} names a server"
    return "neither SANDBOX_MODE nor PADDOCK_URL is set, so sandboxes are in this process"


def _class_of(asked: Selection) -> Type[Sandbox]:
    if asked.provider is not None:
        return _CLASSES[asked.provider]
    return RemoteSandbox if choose_mode() == "remote" else LocalSandbox


def get_sandbox(user_id: Optional[str] = None) -> Type[Sandbox]:
    """The class of sandboxes that the environment asks for.

    That of a provider where SANDBOX_MODE, SANDBOX_PROVIDER or USE_CLOUDRUN_JOBS_SANDBOX name one
    (`DockerSandbox`, `CloudRunJobsSandbox`, ...); else `RemoteSandbox` or `LocalSandbox`. Whether the
    server has that provider is seen when a sandbox is made: the error lists those that it has.

    Args:
        user_id: Whose sandbox it is; CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE goes by it, as with the server.

    Raises:
        ValueError: A variable has a value that it cannot have; the message lists the valid ones.
    """
    asked = select(user_id)
    chosen = _class_of(asked)
    logger.info("Sandbox selection: %s (%s)", chosen.__name__, asked.reason or _where())
    return chosen


def get_sandbox_info(user_id: Optional[str] = None) -> SandboxConfiguration:
    """Which class `get_sandbox` gives, and why.

    `implementation` is its name, `feature_flag_enabled` whether USE_CLOUDRUN_JOBS_SANDBOX is on,
    `reason` says why, and `config` is what will be used: no secret is in it.
    """
    asked = select(user_id)
    config = {"mode": choose_mode()}
    if config["mode"] == "remote":
        config["server_url"] = choose_url()
        config["api_key"] = "set" if choose_key() else "not set"
    if asked.provider is not None:
        config["provider"] = asked.provider
    if asked.execution_mode is not None:
        config["execution_mode"] = asked.execution_mode
    if asked.provider == "cloudrun":
        config["project_id"] = os.environ.get(PROJECT, "")
        config["region"] = os.environ.get("SANDBOX_GCP_REGION") or "us-central1"
        config["bucket"] = os.environ.get("SANDBOX_GCS_BUCKET") or "manus-sandbox-state"
    return {"implementation": _class_of(asked).__name__, "feature_flag_enabled": asked.flag_enabled,
            "reason": asked.reason or _where(), "config": config}


# ---- create_sandbox ----

class ProviderSandbox:
    """A sandbox with the few methods that a provider of the older systems had. All are
    asynchronous; whatever needs a sandbox before `create` was called makes one."""

    def __init__(self, provider: str = "auto", mode: Optional[str] = None,
                 server_url: Optional[str] = None, api_key: Optional[str] = None, *,
                 execution_mode: Optional[str] = None) -> None:
        self.provider = provider
        self.execution_mode = execution_mode
        self.sandbox_id: Optional[str] = None
        self._backend: Backend = open_backend(mode, server_url, api_key)
        self._lock = threading.Lock()
        self._kernel: Optional[Kernel] = None

    async def create(self, template: Optional[str] = None, timeout: Optional[float] = None, *,
                     env: Optional[Mapping[str, str]] = None,
                     metadata: Optional[Mapping[str, str]] = None,
                     execution_mode: Optional[str] = None, image: Optional[str] = None,
                     git_url: Optional[str] = None) -> str:
        """Makes the sandbox and gives its id.

        Args:
            template: `default`, `base`, `restricted`, or what else the server has.
            timeout: After so many seconds it ends.
            env: Variables of all commands.
            metadata: Strings of your own.
            execution_mode: "local", "sandbox" or "auto"; without it, that of this object.
            image: What it is made from, with a provider that takes images.
            git_url: A repository that provider `daytona` clones into /workspace before anything runs.
        """
        if self.sandbox_id is not None:
            raise ConflictError(f"this object has a sandbox already, {self.sandbox_id}; delete it "
                                "first, or call create_sandbox again")
        options = SandboxOptions(
            template=template, max_life_s=timeout, env=dict(env) if env else None,
            provider=self.provider, execution_mode=execution_mode or self.execution_mode, image=image, git_url=git_url,
            metadata=dict(metadata) if metadata else None)
        return await in_thread(lambda: self._make(options))

    def _make(self, options: SandboxOptions) -> str:
        with self._lock:
            if self.sandbox_id is None:
                self.sandbox_id = self._backend.create(options).id
            return self.sandbox_id

    def _id(self) -> str:
        return self._make(SandboxOptions(provider=self.provider,
                                         execution_mode=self.execution_mode))

    async def run_command(self, command: str, timeout: Optional[float] = 60, *,
                          cwd: Optional[str] = None,
                          env: Optional[Mapping[str, str]] = None,
                          execution_mode: Optional[str] = None) -> ExecutionResult:
        """Runs a line of bash; its directory and exported variables hold for the next one.
        `execution_mode` is this command's own."""
        def call() -> ExecutionResult:
            result = self._backend.exec(self._id(), command, timeout_s=timeout, cwd=cwd, env=env,
                                        execution_mode=execution_mode)
            return ExecutionResult(
                exit_code=result.status, stdout=result.stdout, stderr=result.stderr,
                execution_time_ms=result.execution_time_ms, timed_out=result.timed_out,
                stopped_by=result.stopped_by, stdout_truncated=result.stdout_truncated,
                stderr_truncated=result.stderr_truncated, session_id=self.sandbox_id or "",
                mode=result.mode, provider=result.provider, isolation=result.isolation,
                reason=result.reason)
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
                         server_url: Optional[str] = None, api_key: Optional[str] = None,
                         execution_mode: Optional[str] = None) -> ProviderSandbox:
    """An object for one sandbox, which its `create` makes.

    Args:
        provider: What sandboxes are made of: "auto", or a name that the server or the library has
            (`GET /v1/providers`); or a mode, "local" or "remote", where no provider has that name.
            Without it, what the environment asks for, in the order of `get_sandbox`, else "auto".
        mode: See `SandboxClient`, as are `server_url` and `api_key`.
        execution_mode: "local", "sandbox" or "auto"; without it and without a provider, what the
            environment asks for.

    Raises:
        ValueError: The provider is unknown; the message lists the valid ones.
    """
    # "local" and "remote" in SANDBOX_PROVIDER are where, as older clients of this package had it.
    where = os.environ.get("SANDBOX_PROVIDER", "").strip().lower()
    said = provider or select().provider or (where if where in MODES else "") or "auto"
    chosen = said.strip().lower()
    if chosen == "remote":
        mode, chosen = mode or chosen, "auto"
    if chosen == "auto":
        return ProviderSandbox(chosen, mode, server_url, api_key, execution_mode=execution_mode)

    backend = open_backend(mode, server_url, api_key)
    there = await in_thread(backend.providers)
    if chosen == "local" and chosen not in there:
        return ProviderSandbox("auto", mode or chosen, server_url, api_key,
                               execution_mode=execution_mode)
    if chosen not in there:
        raise ValueError(f"Unknown sandbox provider '{said}'; valid are: "
                         f"{', '.join(dict.fromkeys(['auto', *there, *MODES]))}. Pass provider=..., "
                         "or set SANDBOX_PROVIDER")
    return ProviderSandbox(chosen, mode, server_url, api_key, execution_mode=execution_mode)
