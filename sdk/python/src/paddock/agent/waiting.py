"""Waiting that Ctrl-C can end.

How this works: a call that may take long runs in a thread of its own with a cancel token, and the
main thread looks at it ten times a second. While it waits, SIGINT only counts: the first one cancels
the call, the second one leaves the program. A call of the library could not be interrupted in the
main thread itself: no handler of Python runs before it returns. While a line is read from the
terminal, SIGINT is the usual KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import Callable, List, Optional, TypeVar

from .. import _cancel

T = TypeVar("T")

CALL_NAME = "paddock-agent-call"
LOOK_S = 0.1
GRACE_S = 10.0  # for a call that was cancelled to end


class Interrupted(Exception):
    """The user has ended what was going on."""


class Leave(Exception):
    """The user has asked twice: the program ends."""


class Waiter:
    """Makes calls that can be interrupted. One for the main thread of a program."""

    def __init__(self) -> None:
        self._count = 0
        self._reads = False

    def install(self) -> None:
        """Takes over SIGINT."""
        signal.signal(signal.SIGINT, self._hear)

    def _hear(self, *_: object) -> None:
        self._count += 1
        if self._reads:
            raise KeyboardInterrupt

    def read(self, call: Callable[[], T]) -> T:
        """Reads from the terminal: SIGINT is a KeyboardInterrupt in it."""
        self._reads = True
        try:
            return call()
        finally:
            self._reads = False
            self._count = 0

    def begin(self) -> None:
        """What was pressed before does not count for what comes now."""
        self._count = 0

    def check(self) -> None:
        """Raises Interrupted if SIGINT came since `begin`."""
        if self._count:
            raise Interrupted

    def call(self, work: Callable[[], T]) -> T:
        """The call's result. Raises Interrupted, after the call has ended, or Leave."""
        self.check()
        token = _cancel.CancelToken()
        result: List[T] = []
        raised: List[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                result.append(_cancel.call_with(token, work))
            except BaseException as error:  # raised again by the caller
                raised.append(error)
            finally:
                done.set()

        threading.Thread(target=run, name=CALL_NAME, daemon=True).start()
        give_up: Optional[float] = None
        while not done.wait(LOOK_S):
            if self._count and give_up is None:
                token.cancel()
                give_up = time.monotonic() + GRACE_S
            if self._count > 1:
                raise Leave
            if give_up is not None and time.monotonic() > give_up:
                raise Interrupted
        if token.cancelled or self._count:
            raise Interrupted
        if raised:
            raise raised[0]
        return result[0]

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.check()
            time.sleep(min(LOOK_S, max(until - time.monotonic(), 0)))
