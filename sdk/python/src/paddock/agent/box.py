"""The sandbox of a conversation: made when it is needed, found again, made anew when it was lost.

How this works: the sandbox is the session of this user and thread, so a conversation that goes on
finds its files and processes, as long as the server keeps them. A sandbox of the library in this
process ends with it. Whoever asks for a lost one is told so: `news` has what the model must know.
"""

from __future__ import annotations

from typing import Callable, List, Optional

from .._backend import Backend
from ..errors import NotFoundError, PaddockError, SessionGoneError
from ..models import SandboxInfo, SandboxOptions

USER = "paddock-agent"
LOCAL_IDLE_S = 7 * 86400.0  # it ends with this process anyway

GONE = ("the sandbox of this conversation is gone, with its files and processes{why}; "
        "a new one has taken its place")


class Box:
    """The sandbox, if there is one yet. `fill` is called with each new one."""

    def __init__(self, backend: Backend, thread: str, *, template: Optional[str] = None, was_there: bool = False,
                 fill: Optional[Callable[[], None]] = None) -> None:
        self.backend = backend
        self._thread = thread
        self._was_there = was_there
        self._fill = fill
        self._id: Optional[str] = None
        idle = LOCAL_IDLE_S if backend.mode == "local" else None
        self._options = SandboxOptions(template=template, idle_timeout_s=idle, metadata={"made_by": USER})
        self.news: List[str] = []
        """What has happened to it, for the user and the model; who reads it clears it."""

    @property
    def is_open(self) -> bool:
        """Has it been made or found?"""
        return self._id is not None

    @property
    def id(self) -> str:
        """Its id; it is made or found if it was not yet."""
        if self._id is None:
            self._open()
        assert self._id is not None
        return self._id

    def _open(self) -> None:
        why = ""
        try:
            info = self.backend.get_or_create(USER, self._thread, self._options)
        except SessionGoneError as error:
            why = f" ({error.message})"
            info = self.backend.get_or_create(USER, self._thread, self._options, auto_retry=True)
        self._id = info.id
        if info.created and (self._was_there or why):
            self.news.append(GONE.format(why=why))
        self._was_there = True
        if info.created and self._fill is not None:
            try:
                self._fill()
            except BaseException:
                self.end()  # one without the user's files is not what was asked for
                raise

    def info(self) -> SandboxInfo:
        """What it is."""
        return self.backend.find(self.id)

    def is_lost(self, error: PaddockError) -> bool:
        """Does this error of a call mean that the sandbox is gone? Then the next call makes another."""
        if self._id is None:
            return False
        if isinstance(error, NotFoundError):
            try:
                if self.backend.find(self._id).state not in ("gone", "stopping"):
                    return False  # a file or a process was not found
            except NotFoundError:
                pass
            except SessionGoneError:
                pass
        elif not isinstance(error, SessionGoneError):
            return False
        self._id = None
        return True

    def end(self) -> None:
        """Ends it, if it was made."""
        if self._id is not None:
            self.backend.end(self._id)
            self._id = None
