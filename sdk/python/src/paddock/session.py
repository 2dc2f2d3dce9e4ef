"""`SandboxSession`: a sandbox for an agent, and the tools that the agent holds it by.

    session = SandboxSession.create(session_id="chat-123")
    agent = create_agent(model, session.get_tools())

In asyncio code it is awaited, and the tools are called by `ainvoke`:

    async with await SandboxSession.create(session_id="chat-123") as session:
        tools = {tool.name: tool for tool in session.get_tools()}
        print(await tools["shell_exec"].ainvoke({"command": "uname -a"}))
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from typing import (
    TYPE_CHECKING, Dict, Generator, List, Optional, Sequence, Type, TypeVar, Union,
)

from ._backend import Backend, choose_mode, choose_provider, open_backend
from ._cancel import in_thread
from .errors import NotFoundError, PaddockError, SessionGoneError
from .kernel import Kernel
from .models import Entry, SandboxOptions

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

__all__ = ["SandboxSession"]

T = TypeVar("T", bound="SandboxSession")

USER = "agent"
OUTPUT_MAX_CHARS = 16000


def means_gone(backend: Backend, sandbox_id: str, error: PaddockError) -> bool:
    """Whether that error of a call says that the sandbox is gone, and not only a file in it."""
    if isinstance(error, NotFoundError):
        try:
            return backend.find(sandbox_id).state in ("gone", "stopping")
        except (NotFoundError, SessionGoneError):
            return True
    return isinstance(error, SessionGoneError)


class SandboxSession:
    """The sandbox of one conversation.

    Thread-safe. One that was given a `session_id` stays for the conversation's next turn, in this
    process or another; one without ends with its context, or by `delete`.
    """

    def __init__(self, session_id: Optional[str] = None, *, user_id: str = USER,
                 mode: Optional[str] = None, server_url: Optional[str] = None,
                 api_key: Optional[str] = None, options: Optional[SandboxOptions] = None,
                 timeout_minutes: float = 30, auto_retry: bool = True,
                 output_max_chars: int = OUTPUT_MAX_CHARS) -> None:
        """See `create`, which also makes the sandbox; this one leaves it to the first call."""
        self.session_id: str = session_id or f"session-{uuid.uuid4().hex}"
        """As you call the conversation."""
        self.user_id: str = user_id
        """As you call the user."""
        self.output_max_chars: int = output_max_chars
        """Longer answers of tools are cut in the middle."""
        where = choose_mode(mode, server_url, may_be_provider=True)
        self._backend: Backend = open_backend(where, server_url, api_key)
        self._keep = session_id is not None
        self._auto_retry = auto_retry
        self._options = SandboxOptions(**(options.to_dict() if options else {}))
        if self._options.provider is None:
            self._options.provider = choose_provider(mode)
        if self._options.idle_timeout_s is None:
            self._options.idle_timeout_s = timeout_minutes * 60
        self._lock = threading.RLock()
        self._id: Optional[str] = None
        self._kernel: Optional[Kernel] = None
        self._seen: Dict[int, int] = {}

    @classmethod
    def create(cls: Type[T], session_id: Optional[str] = None, *, user_id: str = USER,
               mode: Optional[str] = None, server_url: Optional[str] = None,
               api_key: Optional[str] = None, options: Optional[SandboxOptions] = None,
               timeout_minutes: float = 30, auto_retry: bool = True,
               output_max_chars: int = OUTPUT_MAX_CHARS) -> T:
        """The session of that name, made if there is none.

        It can be used as it is or be awaited. Where an event loop runs, the sandbox is made by the
        `await` or by the first call, so that the loop is not held up.

        Args:
            session_id: As you call the conversation; without it, one of its own.
            user_id: As you call the user. Sessions of two users never meet.
            mode: "local" or "remote", or the name of a provider, which then makes the sandbox. For
                `server_url` and `api_key` see `SandboxClient`.
            options: What a new sandbox should be.
            timeout_minutes: It ends when nobody has used it for so long.
            auto_retry: When the sandbox was lost or has expired, make a fresh one. The tool that
                noticed it fails and tells the model what is gone; the next call works again.
            output_max_chars: Longer answers of tools are cut in the middle.

        Raises:
            SessionGoneError: The last one was lost or has expired, and `auto_retry` is false.
        """
        session = cls(session_id, user_id=user_id, mode=mode, server_url=server_url,
                      api_key=api_key, options=options, timeout_minutes=timeout_minutes,
                      auto_retry=auto_retry, output_max_chars=output_max_chars)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            session.ensure()
        return session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r} {self._id or 'not made yet'}>"

    # ---- the sandbox ----

    def ensure(self) -> str:
        """Makes the sandbox if there is none yet; gives its id."""
        with self._lock:
            if self._id is None:
                self._id = self._backend.get_or_create(
                    self.user_id, self.session_id, self._options, auto_retry=self._auto_retry).id
            return self._id

    @property
    def sandbox_id(self) -> str:
        """The id of its sandbox."""
        return self._id or self.ensure()

    @property
    def backend(self) -> Backend:
        """What carries the calls out."""
        return self._backend

    @property
    def kernel(self) -> Kernel:
        """The Python interpreter of the session, whose variables stay."""
        sandbox_id = self.sandbox_id
        with self._lock:
            if self._kernel is None:
                self._kernel = Kernel(self._backend, sandbox_id)
            return self._kernel

    def seen(self, pid: int) -> int:
        """How much of a terminal's output was shown already."""
        with self._lock:
            return self._seen.get(pid, 0)

    def set_seen(self, pid: int, offset: int) -> None:
        """Remembers that."""
        with self._lock:
            self._seen[pid] = offset

    def replace_lost(self, error: PaddockError) -> Optional[str]:
        """If that error means that the sandbox is gone, makes another one and says what is lost.

        None when the sandbox is still there. Without `auto_retry` nothing is made.
        """
        lost = self._id
        if lost is None or not means_gone(self._backend, lost, error):
            return None
        text = f"the sandbox is gone ({error.message}), with all files, processes and variables"
        if not self._auto_retry:
            return text + "; this session has ended"
        with self._lock:
            if self._id == lost:
                self._id = None
                self._kernel = None
                self._seen = {}
            self.ensure()
        return (text + ". A new, empty one has taken its place, and this call was not done "
                "in it: make again what you need, then repeat it")

    # ---- files ----

    def upload(self, source: Union[str, os.PathLike[str], bytes], path: str) -> Entry:
        """Writes a file in the sandbox.

        Args:
            source: A path on this machine, or the contents as bytes.
            path: Where it goes; a relative path is below /workspace.
        """
        if isinstance(source, bytes):
            return self._backend.write_file(self.sandbox_id, path, source)
        with open(source, "rb") as data:
            return self._backend.write_file(self.sandbox_id, path, data)

    def download(self, path: str) -> bytes:
        """The contents of a file of the sandbox."""
        return self._backend.read_file(self.sandbox_id, path)

    # ---- tools ----

    def get_tools(self, names: Optional[Sequence[str]] = None) -> List[BaseTool]:
        """The tools of this session, for LangChain and LangGraph.

        Args:
            names: Only these; without it, all.

        Raises:
            ImportError: `langchain-core` is not installed.
            ValueError: There is no tool of such a name.
        """
        from .tools import build_tools

        return build_tools(self, names)

    # ---- its end ----

    def delete(self) -> bool:
        """Ends the sandbox with all that is in it. False when there was none."""
        with self._lock:
            sandbox_id, self._id, self._kernel = self._id, None, None
            self._seen = {}
        if sandbox_id is None and self._keep:
            try:
                found = self._backend.find_session(self.user_id, self.session_id)
            except (NotFoundError, SessionGoneError):
                return False
            sandbox_id = None if found.state in ("gone", "stopping") else found.id
        return sandbox_id is not None and self._backend.end(sandbox_id)

    def close(self) -> None:
        """The end of this turn: a session without a name ends, one with a name stays."""
        if not self._keep:
            self.delete()

    async def adelete(self) -> bool:
        """`delete` for asyncio."""
        return await in_thread(self.delete)

    async def aclose(self) -> None:
        """`close` for asyncio."""
        await in_thread(self.close)

    def __await__(self: T) -> Generator[object, None, T]:
        yield from in_thread(self.ensure).__await__()
        return self

    def __enter__(self: T) -> T:
        self.ensure()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self: T) -> T:
        await in_thread(self.ensure)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
