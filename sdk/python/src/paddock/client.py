"""`SandboxClient`: commands and files in the session of a user and a thread."""

from __future__ import annotations

import contextvars
import os
import threading
import uuid
from pathlib import Path
from typing import BinaryIO, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ._backend import Backend, open_backend
from ._text import text_callback
from .errors import InvalidArgumentError, SessionGoneError
from .models import Entry, ExecutionResult, SandboxInfo, SandboxOptions, SessionInfo

__all__ = ["SandboxClient"]

_Names = Tuple[str, str]


class SandboxClient:
    """A client that serves users and conversations.

    It does not keep ids; it says whose sandbox it means:

        client = SandboxClient()
        client.get_or_create_session("ann", "chat-1", timeout_minutes=30)
        result = client.execute("echo hello", timeout=30, auto_retry=True)
        print(result["exit_code"], result["stdout"])

    One client can be shared by any number of threads and tasks: which session is the current one is
    a matter of each thread and each asyncio task (a context variable). A thread that asked for none
    uses the client's only session; if there are several, it must say which by `session_id`.

    Args:
        mode: "local" (in this process) or "remote" (a server). Without it, SANDBOX_MODE; without
            that, "remote" if a server is named and "local" if not.
        server_url: Of the server. Without it, PADDOCK_URL, then SANDBOX_URL, then
            http://127.0.0.1:8090.
        api_key: Without it, PADDOCK_API_KEY.

    Raises:
        ValueError: The mode is unknown; the message lists the valid ones.
        UnsupportedError: This installation cannot do "local".
    """

    def __init__(self, mode: Optional[str] = None, server_url: Optional[str] = None,
                 api_key: Optional[str] = None) -> None:
        self._backend: Backend = open_backend(mode, server_url, api_key)
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._names: Dict[str, _Names] = {}
        self._options: Dict[_Names, SandboxOptions] = {}
        self._latest: Dict[_Names, str] = {}
        self._own: Optional[str] = None
        self._owned: Set[str] = set()
        self._current: contextvars.ContextVar[Optional[str]] = contextvars.ContextVar(
            f"paddock_session_{id(self)}", default=None)

    @property
    def mode(self) -> str:
        """"local" or "remote"."""
        return self._backend.mode

    # ---- sessions ----

    def get_or_create_session(self, user_id: str, thread_id: str, timeout_minutes: float = 30, *,
                              auto_retry: bool = False,
                              options: Optional[SandboxOptions] = None) -> SessionInfo:
        """The session of this user and thread, made if there is none, becomes the current one.

        Args:
            user_id: As you call the user.
            thread_id: As you call the conversation.
            timeout_minutes: It ends when nobody has used it for so long.
            auto_retry: If the last one was lost or has expired, make a fresh one instead of raising;
                `status` is then "recreated".
            options: What a new one should be.

        Raises:
            SessionGoneError: The last one was lost or has expired, and `auto_retry` was not given.
        """
        wanted = SandboxOptions(**(options.to_dict() if options else {}))
        if wanted.idle_timeout_s is None:
            wanted.idle_timeout_s = timeout_minutes * 60
        info = self._backend.get_or_create(user_id, thread_id, wanted, auto_retry=auto_retry)
        with self._lock:
            self._names[info.id] = (user_id, thread_id)
            self._latest[(user_id, thread_id)] = info.id
            self._options[(user_id, thread_id)] = wanted
        self._current.set(info.id)
        return _session(info, user_id, thread_id)

    def list_sessions(self, user_id: Optional[str] = None) -> List[SandboxInfo]:
        """The sandboxes that there are, of one user or of all."""
        return [*self._backend.list(user_id=user_id)]

    def close_session(self, session_id: Optional[str] = None) -> bool:
        """Ends a session with all that is in it. False when there was none."""
        with self._lock:
            chosen = session_id or self._current.get() or self._only() or self._own
        if not chosen:
            return False
        with self._lock:
            names = self._names.get(chosen)
            if names is not None and self._latest.get(names) == chosen:
                del self._latest[names]
            if self._own == chosen:
                self._own = None
        if self._current.get() == chosen:
            self._current.set(None)
        return self._backend.end(chosen)

    def _only(self) -> Optional[str]:
        if len(self._latest) > 1:
            raise InvalidArgumentError(
                f"this client has {len(self._latest)} sessions and this thread has chosen none: "
                "call get_or_create_session in it, or pass session_id",
                details={"field": "session_id"})
        return next(iter(self._latest.values()), None)

    def _chosen(self, session_id: Optional[str] = None) -> str:
        chosen = session_id or self._current.get()
        if chosen:
            return chosen
        with self._lock:
            only = self._only()
        return only or self._own_sandbox(None)

    def _own_sandbox(self, gone: Optional[str]) -> str:
        """The sandbox of who never asked for a session: one per client."""
        with self._making:
            if self._own is None or self._own == gone:
                self._own = self._backend.create(SandboxOptions()).id
                self._owned.add(self._own)
            return self._own

    def _fresh(self, gone: str) -> str:
        """A session in place of one that is gone; the same for all threads that noticed it."""
        with self._lock:
            names = self._names.get(gone)
            options = self._options.get(names) if names else None
        if names is None:
            if gone in self._owned:
                return self._own_sandbox(gone)
            raise InvalidArgumentError(
                f"session {gone} was not asked for by user and thread, so it cannot be made anew",
                details={"field": "session_id"})
        info = self._backend.get_or_create(*names, options or SandboxOptions(), auto_retry=True)
        with self._lock:
            self._names[info.id] = names
            self._latest[names] = info.id
        return info.id

    # ---- commands ----

    def execute(self, command: Union[str, Sequence[str]], timeout: Optional[float] = 30,
                auto_retry: bool = False, *, session_id: Optional[str] = None,
                cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
                stdin: Union[str, bytes, None] = None,
                on_stdout: Optional[Callable[[str], None]] = None,
                on_stderr: Optional[Callable[[str], None]] = None,
                execution_mode: Optional[str] = None) -> ExecutionResult:
        """Runs a command in the current session and waits for its end.

        Without a session, the client makes a sandbox of its own, which ends with `close`.

        Args:
            command: A line for bash, whose directory and exported variables hold for the next one;
                or a program and its arguments, which are run as they are.
            timeout: In seconds; the command and its children are then ended, `timed_out` is true
                and `exit_code` 124. None is no limit.
            auto_retry: If the session is gone, run the command in a fresh one (`recreated` is then
                true). If the server was restarted meanwhile, wait for it; the command still runs
                only once.
            session_id: Another session than the current one.
            cwd: An absolute path; without it, where the last command was left.
            env: Variables for this command only.
            stdin: What it reads; without it, nothing.
            on_stdout: Called with the output as it comes.
            on_stderr: Likewise.
            execution_mode: What it may run in, other than the session's own: `local`, `sandbox` or
                `auto`. A session that is isolated too little moves first, and `reason` says why; none
                moves down.

        Raises:
            SessionGoneError: The session is gone, and `auto_retry` was not given.
        """
        chosen = self._chosen(session_id)
        recreated = False
        # A second time for a session that is gone, and a third for one that ends just then.
        for last in (False, False, True):
            out, finish_out = text_callback(on_stdout)
            err, finish_err = text_callback(on_stderr)
            try:
                result = self._backend.exec(
                    chosen, command, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout,
                    on_stdout=out, on_stderr=err,
                    retry_key=uuid.uuid4().hex if auto_retry else None,
                    execution_mode=execution_mode)
            except SessionGoneError:
                if not auto_retry or last:
                    raise
                chosen = self._fresh(chosen)
                recreated = True
                if not session_id:
                    self._current.set(chosen)
                continue
            finish_out()
            finish_err()
            return ExecutionResult(
                exit_code=result.status, stdout=result.stdout, stderr=result.stderr,
                execution_time_ms=result.execution_time_ms, timed_out=result.timed_out,
                stopped_by=result.stopped_by, stdout_truncated=result.stdout_truncated,
                stderr_truncated=result.stderr_truncated, session_id=chosen, recreated=recreated,
                mode=result.mode, provider=result.provider, isolation=result.isolation,
                reason=result.reason)
        raise AssertionError("not reached")

    # ---- files ----

    def upload(self, source: Union[str, os.PathLike[str], bytes, BinaryIO], path: str, *,
               session_id: Optional[str] = None) -> Entry:
        """Writes a file in the session; missing directories are made.

        Args:
            source: A path on this machine, the contents as bytes, or an open binary file.
            path: Where it goes; a relative path is below /workspace.
        """
        chosen = self._chosen(session_id)
        if isinstance(source, (bytes, bytearray)):
            return self._backend.write_file(chosen, path, source)
        if isinstance(source, (str, os.PathLike)):
            with open(source, "rb") as data:
                return self._backend.write_file(chosen, path, data)
        return self._backend.write_file(chosen, path, source)

    def download(self, path: str, target: Union[str, os.PathLike[str], None] = None, *,
                 session_id: Optional[str] = None) -> bytes:
        """Reads a file of the session.

        Args:
            path: In the session; a relative path is below /workspace.
            target: A path on this machine that it is written to, piece by piece; the result is then
                empty. Without it, the result is the contents.
        """
        chosen = self._chosen(session_id)
        if target is None:
            return self._backend.read_file(chosen, path)
        # A download that fails leaves nothing behind, and what was there before as it was.
        part = Path(f"{os.fspath(target)}.{uuid.uuid4().hex[:8]}.part")
        try:
            with open(part, "wb") as out:
                for data in self._backend.iter_file(chosen, path):
                    out.write(data)
            os.replace(part, target)
        finally:
            if part.exists():
                part.unlink()
        return b""

    def list(self, path: str = ".", depth: int = 1, *,
             session_id: Optional[str] = None) -> List[Entry]:
        """The entries of a directory, sorted by path; `depth` levels of it."""
        return self._backend.list_files(self._chosen(session_id), path, depth=depth)

    upload_file = upload
    download_file = download
    list_files = list

    # ---- its end ----

    def close(self) -> None:
        """Ends the sandbox that the client made for itself, if any. Sessions stay."""
        with self._making:
            own, self._own = self._own, None
        if own:
            self._backend.end(own)

    def __enter__(self) -> SandboxClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _session(info: SandboxInfo, user_id: str, thread_id: str) -> SessionInfo:
    status = "recreated" if info.created and info.recreated else \
        "created" if info.created else "existing"
    return SessionInfo(session_id=info.id, status=status, user_id=user_id, thread_id=thread_id,
                       expires_at=info.expires_at, replaces=info.replaces)
