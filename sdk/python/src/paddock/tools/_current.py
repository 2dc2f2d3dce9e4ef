"""The sandbox of the coordinator's current request, as a session that tools can be built for."""

from __future__ import annotations

import threading
from typing import Dict, Optional, Tuple

from .._backend import Backend
from ..coordinator import SandboxCoordinator, get_sandbox_coordinator, has_mode
from ..errors import PaddockError
from ..kernel import Kernel
from ..session import SandboxSession, means_gone

__all__ = ["CoordinatorSession", "session_of"]


class CoordinatorSession(SandboxSession):
    """Whatever sandbox the coordinator of this process has for the request that is current when a tool
    is called. So tools may be made once, when a program starts, and find in each request the data that
    `ensure_session_with_data` has put there and the variables of `execute_code`."""

    def __init__(self) -> None:
        super().__init__("coordinator", mode=get_sandbox_coordinator().mode)
        self._shown: Dict[Tuple[str, int], int] = {}

    @property
    def coordinator(self) -> SandboxCoordinator:
        """That of this process, also after `reset_coordinator`."""
        return get_sandbox_coordinator()

    @property
    def backend(self) -> Backend:
        """What carries the calls out."""
        return self.coordinator.backend

    @property
    def kernel(self) -> Kernel:
        """The interpreter that `execute_code` uses, too."""
        return self.coordinator.kernel

    @property
    def sandbox_id(self) -> str:
        """The id of the current request's sandbox."""
        return self.ensure()

    def ensure(self) -> str:
        """Makes the sandbox of the current request if there is none yet; gives its id."""
        return self.coordinator.sandbox_id

    def replace_lost(self, error: PaddockError) -> Optional[str]:
        """As with `execute_code`: another sandbox is made, with the same data, and what is lost is said."""
        lost = self.coordinator.session_id
        if lost is None or not means_gone(self.backend, lost, error):
            return None
        return self.coordinator.replace_lost(error)

    def seen(self, pid: int) -> int:
        """How much of a terminal's output was shown already."""
        with self._lock:
            return self._shown.get((self.sandbox_id, pid), 0)

    def set_seen(self, pid: int, offset: int) -> None:
        """Remembers that."""
        with self._lock:
            self._shown[self.sandbox_id, pid] = offset

    def delete(self) -> bool:
        """Ends the sandbox of the current request. False when it had none."""
        there = self.coordinator.session_id is not None
        self.coordinator.cleanup_session()
        return there


_sessions: Dict[str, SandboxSession] = {}
_sessions_lock = threading.Lock()


def session_of(mode: Optional[str]) -> SandboxSession:
    """The session that all tools of this process which are made for a mode share: without one, and with
    the coordinator's own, the coordinator's; of any other mode one beside it.

    Raises:
        ValueError: The mode is unknown; the message lists the valid ones.
    """
    if mode is None or has_mode(get_sandbox_coordinator(), mode):
        return CoordinatorSession()
    chosen = mode.strip().lower()
    with _sessions_lock:
        if chosen not in _sessions:
            _sessions[chosen] = SandboxSession(mode=chosen)
        return _sessions[chosen]
