"""Python whose variables stay, with plain results: what the coordinator and the tools use."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

from ._backend import Backend, gone_error
from .contexts import PYTHON, Code, Context, Named
from .errors import NotFoundError, PaddockError, UnsupportedError
from .execution import Execution, OutputMessage
from .models import CodeResult

__all__ = ["Kernel"]

ENDING_S = 20.0  # for a sandbox that is being ended


class Kernel:
    """A Python interpreter in a sandbox.

    It is a code context of the sandbox: without `cwd` its default one, which `Sandbox.run_code` uses,
    too. It survives a restart of the server. When it has died (memory, `os._exit`, somebody killed
    it), the result says so, `state_lost` is true, and the next call starts another one.

    Calls from several threads run one after the other.

    Args:
        cwd: Where it starts; it then has a context of its own.
        python: There is one: the sandbox's python3.
    """

    def __init__(self, backend: Backend, sandbox_id: str, *, cwd: Optional[str] = None,
                 python: str = "python3") -> None:
        if python not in ("python3", "python"):
            raise UnsupportedError(
                f"python: code runs by the sandbox's python3, not by '{python}': run that program "
                "as a command", details={"field": "python"})
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._code = Code(backend, sandbox_id)
        self._cwd = cwd
        self._lock = threading.Lock()
        self._context: Optional[Context] = None
        self._used = False

    @property
    def running(self) -> bool:
        """Whether there is an interpreter that holds variables."""
        return self._used

    def run(self, code: str, timeout: Optional[float] = 600, *,
            on_stdout: Optional[Callable[[str], None]] = None,
            on_stderr: Optional[Callable[[str], None]] = None) -> CodeResult:
        """Runs code and waits for its end.

        Args:
            code: Python, any number of lines.
            timeout: In seconds. The code is then interrupted (KeyboardInterrupt), and the variables
                stay; code that does not heed it is killed with its interpreter.
            on_stdout: Called with its output as it comes.
            on_stderr: Likewise.
        """
        start = time.monotonic()
        done = self.execute(code, timeout, on_stdout=on_stdout, on_stderr=on_stderr)
        result = as_code_result(done, timeout)
        result.execution_time_ms = round((time.monotonic() - start) * 1000, 3)
        return result

    def execute(self, code: str, timeout: Optional[float] = 600, *,
                on_stdout: Optional[Callable[[str], None]] = None,
                on_stderr: Optional[Callable[[str], None]] = None) -> Execution:
        """The same, with everything that the code gave: tables and pictures, too."""
        with self._lock:
            done = self._code.run(code, context=self._named(), on_stdout=_text_of(on_stdout),
                                  on_stderr=_text_of(on_stderr), timeout=timeout)
            self._used = not _died(done)
        if done.reason == "sandbox":
            raise self._gone()
        return done

    def close(self) -> None:
        """Ends the interpreter."""
        with self._lock:
            context, self._context = self._context, None
            used, self._used = self._used, False
            if context is None and not used:
                return
            try:
                self._code.remove(context or PYTHON)
            except PaddockError:
                pass  # it is gone already, or its sandbox is

    def _named(self) -> Named:
        if self._cwd is None:
            return PYTHON
        if self._context is None:
            self._context = self._code.create(self._cwd)
        return self._context

    def _gone(self) -> PaddockError:
        """Why the sandbox is gone, which is known when its end is."""
        deadline = time.monotonic() + ENDING_S
        while True:
            try:
                info = self._backend.find(self._sandbox_id)
            except NotFoundError as gone:
                return gone
            if info.state == "gone" or time.monotonic() > deadline:
                return gone_error(info)
            time.sleep(0.05)


def _text_of(tell: Optional[Callable[[str], None]]) -> Optional[Callable[[OutputMessage], None]]:
    if tell is None:
        return None
    hear = tell
    return lambda message: hear(message.line)


def _died(done: Execution) -> bool:
    """Did the interpreter die while the code ran?"""
    return done.state_lost and done.error is not None and done.error.name == "ContextRestarting"


def as_code_result(done: Execution, timeout: Optional[float]) -> CodeResult:
    """A plain result: what the code wrote, and what went wrong in words."""
    result = CodeResult(done.success, done.output, "", done.stderr, state_lost=done.state_lost)
    if done.error is not None:
        # A program that ends itself without an error is done.
        result.success = done.error.name == "SystemExit" and done.error.value in ("", "0", "None")
        result.error = "" if result.success else (
            done.error.traceback or f"{done.error.name}: {done.error.value}")
    if _died(done):
        result.error = _death(done, timeout)
    elif done.state_lost:
        note = ("the interpreter had died since the last call; this ran in a new one, "
                "without the variables of earlier calls")
        result.stderr += f"[paddock] {note}\n"
        if not result.success:
            result.error = f"{note}\n{result.error}"
    elif done.reason == "timeout" and not result.success:
        result.error = f"timed out after {timeout:g} s and was interrupted\n{result.error}"
    return result


def _death(done: Execution, timeout: Optional[float]) -> str:
    if done.reason == "timeout":
        why = f"timed out after {timeout:g} s, did not heed the interrupt and was killed"
    elif done.reason == "oom":
        why = "the interpreter was killed because the sandbox had no memory left"
    else:
        why = done.error.value if done.error and done.error.value else (
            f"the interpreter died ({done.reason or 'for an unknown reason'})")
    return (f"{why}; the variables of earlier calls are gone, files are still there, and the next "
            "call starts a new interpreter")
