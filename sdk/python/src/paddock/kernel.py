"""An interpreter that stays in a sandbox, so that variables hold from one piece of code to the next."""

from __future__ import annotations

import base64
import binascii
import json
import pkgutil
import threading
import time
import uuid
from typing import Callable, Iterator, Optional, Tuple

from . import _cancel
from ._backend import Backend, gone_error
from ._text import text_callback
from .errors import ConflictError, NotFoundError, PaddockError, TransportError
from .models import CodeResult, ExecResult, OutputEvent

__all__ = ["Kernel"]

ENDING_S = 20.0  # for a sandbox that is being ended
GRACE_S = 5.0  # for code that was interrupted to come to its end
OUTPUT_MAX = 1024 * 1024


def _program() -> str:
    source = pkgutil.get_data(__package__, "_kernel.py")
    assert source is not None
    return source.decode()


class Kernel:
    """A Python interpreter in a sandbox.

    It is a process of the sandbox's own: it survives a restart of the server. When it has died
    (memory, `os._exit`, somebody killed it), the result says so, `state_lost` is true, and the next
    call starts another one.

    Calls from several threads run one after the other.
    """

    def __init__(self, backend: Backend, sandbox_id: str, *, cwd: Optional[str] = None,
                 python: str = "python3") -> None:
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._cwd = cwd
        self._python = python
        self._lock = threading.Lock()
        self._process: Optional[str] = None
        self._offsets = (0, 0)

    @property
    def running(self) -> bool:
        """Whether there is an interpreter that holds variables."""
        return self._process is not None

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
        with self._lock:
            result = self._run(code, timeout, on_stdout, on_stderr)
        result.execution_time_ms = round((time.monotonic() - start) * 1000, 3)
        return result

    def close(self) -> None:
        """Ends the interpreter."""
        with self._lock:
            self._kill()

    # ---- the process ----

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            try:
                self._backend.kill(self._sandbox_id, process)
            except PaddockError:
                pass  # it is gone already, or its sandbox is

    def _ensure(self) -> bool:
        """Is there a live interpreter? False when the one that was there has died."""
        lost = False
        if self._process is not None:
            try:
                info = self._backend.process(self._sandbox_id, self._process)
                if info.running and info.stdin_open:
                    return True
            except NotFoundError:
                pass
            lost = True
            self._kill()
        info = self._backend.start(
            self._sandbox_id, [self._python, "-u", "-c", _program()], stdin=True, cwd=self._cwd,
            env={"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8", "MPLBACKEND": "Agg"})
        self._process = info.process_id
        self._offsets = (0, 0)
        return not lost

    def _send(self, request: bytes) -> None:
        assert self._process is not None
        for last in (False, True):
            try:
                self._backend.write_stdin(self._sandbox_id, self._process, request)
                return
            except TransportError:
                # It may have arrived or not; the interpreter leaves out what it has seen before.
                if last:
                    raise

    def _run(self, code: str, timeout: Optional[float],
             on_stdout: Optional[Callable[[str], None]],
             on_stderr: Optional[Callable[[str], None]]) -> CodeResult:
        kept = self._ensure()
        name = uuid.uuid4().hex
        data = base64.b64encode(code.encode("utf-8", "surrogatepass"))
        request = b"\n%s %x %s\n" % (name.encode(), binascii.crc32(data), data)
        try:
            self._send(request)
        except (ConflictError, NotFoundError):
            # It died between the question and the request: nothing of this code has run.
            kept = False
            self._kill()
            self._ensure()
            self._send(request)
        out = _Until(name, on_stdout)
        err = _Until(name, on_stderr)
        timer = _Interrupt(self._backend, self._sandbox_id, self._process or "", timeout)
        try:
            with timer:
                end = self._collect(out, err)
        except _cancel.Cancelled:
            self._interrupt_and_forget()
            raise
        except BaseException:
            self._kill()
            raise
        if end is not None:
            self._process = None
            if end.stopped_by == "sandbox":
                raise self._gone()
            return CodeResult(False, out.text(), _death(end, timer, timeout), err.text(),
                              state_lost=True)
        answer = json.loads(out.answer)
        error = answer["error"]
        if timer.fired and not answer["ok"]:
            error = f"timed out after {timeout:g} s and was interrupted\n{error}"
        result = CodeResult(answer["ok"], out.text(), error, err.text(), state_lost=not kept)
        if not kept:
            note = ("the interpreter had died since the last call; this ran in a new one, "
                    "without the variables of earlier calls")
            result.stderr += f"[paddock] {note}\n"
            if not result.success:
                result.error = f"{note}\n{result.error}"
        return result

    def _gone(self) -> PaddockError:
        """Why the sandbox is gone, which is known when its end is."""
        deadline = time.monotonic() + ENDING_S
        while True:
            info = self._backend.find(self._sandbox_id)
            if info.state == "gone" or time.monotonic() > deadline:
                return gone_error(info)
            time.sleep(0.05)

    def _interrupt_and_forget(self) -> None:
        # Whoever cancelled does not want to wait; another call would find it busy.
        token = _cancel._token.set(None)
        try:
            self._kill()
        finally:
            _cancel._token.reset(token)

    def _collect(self, out: _Until, err: _Until) -> Optional[ExecResult]:
        """Reads until both marks were seen; how the interpreter ended if it did instead."""
        assert self._process is not None
        events: Iterator[OutputEvent] = self._backend.follow(
            self._sandbox_id, self._process, offsets=self._offsets)
        for event in events:
            if event.stream == "exit":
                out.finish()
                err.finish()
                return event.result
            (out if event.stream == "stdout" else err).add(event.data)
            self._offsets = (event.stdout_offset, event.stderr_offset)
            if out.done and err.done:
                close = getattr(events, "close", None)
                if close:
                    close()
                return None
        raise TransportError("the stream ended before the interpreter did")


class _Until:
    """Output up to the mark of a request."""

    def __init__(self, name: str, tell: Optional[Callable[[str], None]]) -> None:
        self._mark = b"\x1e" + name.encode() + b" "
        self._rest = bytearray()
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._tell, self._finish = text_callback(tell)
        self.answer = ""
        self.done = False

    def add(self, data: bytes) -> None:
        if self.done:
            return
        self._rest += data
        at = self._rest.find(self._mark)
        if at < 0:
            # The mark may have begun.
            begun = self._rest.rfind(b"\x1e", max(0, len(self._rest) - len(self._mark)))
            self._keep(bytes(self._rest[:begun] if begun >= 0 else self._rest))
            self._rest = self._rest[begun:] if begun >= 0 else bytearray()
            return
        end = self._rest.find(b"\x1e", at + len(self._mark))
        if end < 0:
            self._keep(bytes(self._rest[:at]))
            self._rest = self._rest[at:]
            return
        self._keep(bytes(self._rest[:at]))
        self.answer = self._rest[at + len(self._mark):end].decode()
        self.done = True
        self._finish()

    def finish(self) -> None:
        """No mark will come."""
        if not self.done:
            self._keep(bytes(self._rest))
            self._finish()

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._total += len(data)
        room = OUTPUT_MAX // 2 - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0):]
        if len(self._tail) > OUTPUT_MAX:
            del self._tail[:-(OUTPUT_MAX // 2)]
        if self._tell:
            self._tell(data)

    def text(self) -> str:
        head, tail = bytes(self._head), bytes(self._tail[-(OUTPUT_MAX // 2):])
        cut = self._total - len(head) - len(tail)
        if not cut:
            return (head + tail).decode("utf-8", "replace")
        return (head.decode("utf-8", "replace") + f"\n[... {cut} bytes left out ...]\n"
                + tail.decode("utf-8", "replace"))


class _Interrupt:
    """Interrupts a process after a time, and kills it when that does not help."""

    def __init__(self, backend: Backend, sandbox_id: str, process: str,
                 timeout: Optional[float]) -> None:
        self._call: Tuple[Backend, str, str] = (backend, sandbox_id, process)
        self._timeout = timeout
        self._timer: Optional[threading.Timer] = None
        self._lock = threading.Lock()
        self._over = False
        self.fired = False
        self.killed = False

    def __enter__(self) -> _Interrupt:
        if self._timeout:
            self._set(self._timeout, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            if self._timer:
                self._timer.cancel()

    def _set(self, seconds: float, call: Callable[[], None]) -> None:
        with self._lock:
            if not self._over:
                self._timer = threading.Timer(seconds, call)
                self._timer.daemon = True
                self._timer.start()

    def _interrupt(self) -> None:
        backend, sandbox_id, process = self._call
        with self._lock:
            if self._over:
                return
            self.fired = True
        try:
            backend.signal(sandbox_id, process, "SIGINT")
        except PaddockError:
            pass  # it has ended, which its reader is told too
        self._set(GRACE_S, self._kill)

    def _kill(self) -> None:
        backend, sandbox_id, process = self._call
        with self._lock:
            if self._over:
                return
            self.killed = True
        try:
            backend.kill(sandbox_id, process)
        except PaddockError:
            pass


def _death(end: ExecResult, timer: _Interrupt, timeout: Optional[float]) -> str:
    if timer.fired:
        why = (f"timed out after {timeout:g} s, did not heed the interrupt and was killed")
    elif end.stopped_by == "oom":
        why = "the interpreter was killed because the sandbox had no memory left"
    elif end.signal:
        why = f"the interpreter was killed by {end.signal}"
        if end.stopped_by:
            why += f" ({end.stopped_by})"
    else:
        why = f"the code ended its interpreter with status {end.exit_code}"
    return (f"{why}; the variables of earlier calls are gone, files are still there, and the next "
            "call starts a new interpreter")
