"""Ending a blocking call from outside.

How this works: whoever wants to be able to end a call puts a `CancelToken` into the context variable
and calls as usual. A blocking call of a backend hands the token a function that makes it return (a
socket is shut down, a process is killed) and takes it back at its end. AsyncSandbox does this for
every call, so that cancelling a task ends the command that it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterator, List, Optional, TypeVar

from .errors import PaddockError

T = TypeVar("T")


class Cancelled(PaddockError):
    """The call was ended by its token. Nobody but the canceller sees it."""

    default_code = "cancelled"


class CancelToken:
    """One chance to end a call; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enders: List[Callable[[], None]] = []
        self.cancelled = False

    def cancel(self) -> None:
        """Ends the call that runs, and refuses those that would follow."""
        with self._lock:
            # Under the lock: behind it, what they end may already serve another call.
            self.cancelled = True
            for end in self._enders:
                with contextlib.suppress(Exception):
                    end()

    @contextlib.contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """While in it, `cancel` calls `end`."""
        with self._lock:
            if self.cancelled:
                raise Cancelled("the call was cancelled")
            self._enders.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._enders.remove(end)


_token: contextvars.ContextVar[Optional[CancelToken]] = contextvars.ContextVar(
    "paddock_cancel", default=None)


def current() -> Optional[CancelToken]:
    """The token of this call, if it has one."""
    return _token.get()


@contextlib.contextmanager
def ended_by(end: Callable[[], None]) -> Iterator[None]:
    """`end` ends what is done in it, if this call has a token."""
    token = _token.get()
    if token is None:
        yield
        return
    with token.ends(end):
        yield


def cancelled() -> bool:
    """Was this call cancelled?"""
    token = _token.get()
    return token is not None and token.cancelled


def call_with(token: CancelToken, call: Callable[[], T]) -> T:
    """Makes a blocking call that the token ends."""
    context = contextvars.copy_context()
    context.run(_token.set, token)
    return context.run(call)


# Calls wait for commands, not for processors, so there are more threads than asyncio would allow.
_threads: Optional[ThreadPoolExecutor] = None
_threads_lock = threading.Lock()


def _pool() -> ThreadPoolExecutor:
    global _threads
    with _threads_lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(max_workers=256, thread_name_prefix="paddock")
        return _threads


async def in_thread(call: Callable[[], T]) -> T:
    """Runs a blocking call beside the event loop; cancelling the task ends the call."""
    token = CancelToken()
    context = contextvars.copy_context()
    future = asyncio.get_running_loop().run_in_executor(
        _pool(), lambda: context.run(call_with, token, call))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        token.cancel()
        # What the call says about its end is of no interest, but somebody must have looked.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
