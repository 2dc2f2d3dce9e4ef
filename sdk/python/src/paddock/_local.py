"""The backend that runs sandboxes in this process, by libpaddock: no server, no HTTP."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import queue
import signal as signals
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p, string_at
from datetime import datetime, timezone
from typing import (
    Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union,
)

from . import _native as native
from ._backend import Command, EventCallback, FileData, OutputCallback, as_asked
from ._cancel import Cancelled, current
from ._forward import Forward
from ._selection import EXECUTION_MODES, check_name
from ._text import shortened
from .errors import InvalidArgumentError, NotFoundError, PaddockError, UnsupportedError, error_of
from .models import (
    ContextInfo, Entry, Environment, ExecResult, Match, OutputChunk, OutputEvent, PortInfo, Preview,
    ProcessInfo, Replaced, SandboxInfo, SandboxOptions, SearchResult, Usage,
)

PIECE = 1024 * 1024
STDIN_S = 30.0
WATCH_EVENTS = 4096  # that wait to be taken
_LIMITS = {"memory_bytes": "memory", "pids": "pids", "cpu": "cpu_milli", "disk_bytes": "disk",
           "files": "files"}


def _refuse(field: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {text}", details={"field": field})


def _bytes(value: Union[str, bytes], field: str) -> bytes:
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise _refuse(field, "a NUL byte cannot be passed on")
    return data


def _maybe(value: Optional[str], field: str) -> Optional[bytes]:
    return None if value is None else _bytes(value, field)


def _strings(values: Sequence[Union[str, bytes]], field: str) -> Any:
    texts = [_bytes(v, field) for v in values]
    return (c_char_p * (len(texts) + 1))(*texts, None)


def _provider(options: SandboxOptions) -> Optional[str]:
    """The library runs what is `local` by the provider of that name, if it has it; all its others
    are sandboxes."""
    if options.execution_mode is not None:
        mode = check_name("execution mode", options.execution_mode, EXECUTION_MODES,
                          "execution_mode=")
        if mode == "local" and options.provider in (None, "auto"):
            return "local"
    return options.provider


def _pairs(values: Optional[Mapping[str, str]], field: str) -> Any:
    if not values:
        return None
    for name in values:
        if not name or "=" in name:
            raise _refuse(field, f"'{name}' is no name of a variable")
    return _strings([f"{name}={value}" for name, value in values.items()], field)


def _ms(seconds: Optional[float], field: str, least: float = 0) -> int:
    """Milliseconds for the library, for which 0 is its default."""
    if not seconds:
        return 0
    if seconds < least:
        raise _refuse(field, f"at least {least:g} s, not {seconds:g}")
    return max(int(seconds * 1000), 1)


def _time(ms: int) -> Optional[str]:
    if not ms:
        return None
    moment = datetime.fromtimestamp(ms // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def _signal_name(number: int) -> Optional[str]:
    if not number:
        return None
    try:
        return signals.Signals(number).name
    except ValueError:
        return "SIGRT"


def _signal_number(signal: Union[int, str]) -> int:
    text = str(signal)
    if text.isdigit():
        return int(text)
    name = text if text.startswith("SIG") else "SIG" + text
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise _refuse("signal", f"'{text}': a name such as SIGTERM, or 1 to 64") from None


def _path_fields(raw: bytes) -> Dict[str, Any]:
    path = raw.decode("utf-8", "replace")
    fields: Dict[str, Any] = {"path": path}
    try:
        raw.decode()
    except UnicodeDecodeError:
        import base64

        fields["path_base64"] = base64.b64encode(raw).decode()
    return fields


def _entry(e: native.Entry) -> Entry:
    fields = _path_fields(e.path)
    name = fields["path"].rstrip("/").rpartition("/")[2] or fields["path"]
    kind = e.type.decode()
    return Entry(name=name, type=kind, size=e.size, mode=format(e.mode, "04o"), uid=e.uid,
                 gid=e.gid, modified_at=_time(max(e.mtime_ns, 0) // 1000000)
                 or "1970-01-01T00:00:00.000Z",
                 target=e.target.decode("utf-8", "replace") if kind == "symlink" else None, **fields)


class _Library:
    """libpaddock, opened: calls that raise."""

    def __init__(self) -> None:
        try:
            self.dll = native.load()
        except ImportError as why:
            raise UnsupportedError(
                "mode 'local' needs the library libpaddock, which this installation of the package "
                f"does not have ({why}); use mode 'remote' with the URL of a server, or set "
                "PADDOCK_URL") from None
        options = native.Options(size=ctypes.sizeof(native.Options))
        error = native.Error()
        self.handle = self.dll.paddock_open(byref(options), byref(error))
        if not self.handle:
            raise UnsupportedError(
                f"mode 'local' cannot be used here: {_text(error.message)}; use mode 'remote' with "
                "the URL of a server, or set PADDOCK_URL")

    def call(self, name: str, *arguments: object) -> Any:
        """Calls the function, and raises what it failed with."""
        error = native.Error()
        result = getattr(self.dll, "paddock_" + name)(*arguments, byref(error))
        if result is None or (isinstance(result, int) and result < 0):
            raise _error(error)
        return result

    def take_text(self, memory: Optional[int]) -> str:
        """A string that is to be freed."""
        if not memory:
            raise MemoryError
        try:
            return string_at(memory).decode("utf-8", "replace")
        finally:
            self.dll.paddock_free(memory)

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle:
            self.dll.paddock_close(handle)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _error(error: native.Error) -> PaddockError:
    code = _text(error.code)
    if code == "cancelled":
        return Cancelled(_text(error.message))
    return error_of(code, _text(error.message))


class LocalBackend:
    """`Backend` over libpaddock. See `_backend.Backend` for what the methods mean.

    Sandboxes live as long as this process, and end with it however it ends. A process that is
    forked from it has sandboxes of its own.
    """

    mode = "local"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: Optional[_Library] = None
        self._forwards: Dict[Tuple[str, int], Forward] = {}
        self._library()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._end)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._opened = None
        self._forwards = {}

    def _library(self) -> _Library:
        library = self._opened
        if library is not None:
            return library
        with self._lock:
            if self._opened is None:
                self._opened = _Library()
            return self._opened

    def _end(self) -> None:
        with self._lock:
            library, self._opened = self._opened, None
        if library is not None:
            library.close()

    @contextlib.contextmanager
    def _box(self, sandbox_id: str) -> Iterator[Tuple[_Library, int]]:
        library = self._library()
        handle = library.call("find", library.handle, _bytes(sandbox_id, "sandbox_id"))
        try:
            yield library, handle
        finally:
            library.dll.paddock_release(handle)

    @contextlib.contextmanager
    def _process(self, sandbox_id: str, pid: Union[int, str]) -> Iterator[Tuple[_Library, int]]:
        with self._box(sandbox_id) as (library, box):
            handle = library.call("find_process", box, _bytes(str(pid), "pid"))
        try:
            yield library, handle
        finally:
            library.dll.paddock_process_release(handle)

    @contextlib.contextmanager
    def _cancel(self, library: _Library) -> Iterator[Optional[int]]:
        """A handle that this call's token uses, if it has one."""
        token = current()
        if token is None:
            yield None
            return
        handle = library.call("cancel_new")
        try:
            with token.ends(lambda: library.dll.paddock_cancel(handle)):
                yield handle
        finally:
            library.dll.paddock_cancel_free(handle)

    # ---- sandboxes ----

    def _options(self, options: SandboxOptions, user_id: Optional[str], thread_id: Optional[str],
                 auto_retry: bool) -> native.SandboxOptions:
        options = as_asked(options, user_id)
        if options.image is not None:
            raise UnsupportedError(
                f"image: '{options.image}' needs a provider that takes images, and the library has "
                "none: use the mode 'remote', with a server that has docker or podman",
                details={"field": "image"})
        if options.git_url is not None:
            raise UnsupportedError(
                f"git_url: '{options.git_url}' needs provider daytona of a server: here, clone it with git in the sandbox",
                details={"field": "git_url"})
        if options.network is not None:
            raise UnsupportedError(
                "network: sandboxes of the library have no way out: use the mode 'remote', with a "
                "server whose operator has set egress", details={"field": "network"})
        o = native.SandboxOptions(size=ctypes.sizeof(native.SandboxOptions))
        o.user_id = _maybe(user_id, "user_id")
        o.thread_id = _maybe(thread_id, "thread_id")
        o.template_name = _maybe(options.template, "template")
        o.profile = _maybe(options.profile, "profile")
        o.provider = _maybe(_provider(options), "provider")
        if options.metadata is not None:
            for name, value in options.metadata.items():
                if not isinstance(name, str) or not isinstance(value, str):
                    raise _refuse("metadata", "names and values are strings")
            o.metadata = json.dumps(options.metadata).encode()
        if options.policy is not None:
            policy = options.policy
            o.policy = _bytes(policy if isinstance(policy, str) else json.dumps(policy), "policy")
        o.env = _pairs(options.env, "env")
        o.cwd = _maybe(options.cwd, "cwd")
        for name, limit in (options.limits or {}).items():
            if name not in _LIMITS:
                raise _refuse("limits." + name, f"is not known: {', '.join(_LIMITS)}")
            number = int(limit * 1000) if name == "cpu" else int(limit)
            if number <= 0:
                raise _refuse("limits." + name, f"{limit} is too little")
            setattr(o, _LIMITS[name], number)
        o.idle_timeout_ms = _ms(options.idle_timeout_s, "idle_timeout_s", 1)
        o.max_life_ms = _ms(options.max_life_s, "max_life_s", 1)
        o.queue_timeout_ms = _ms(options.queue_timeout_s, "queue_timeout_s")
        o.auto_retry = auto_retry
        return o

    def _describe(self, library: _Library, handle: int, created: bool = False) -> SandboxInfo:
        i = native.SandboxInfo(size=ctypes.sizeof(native.SandboxInfo))
        library.call("sandbox_get", handle, byref(i))
        policy = library.take_text(library.dll.paddock_sandbox_policy(handle))
        return SandboxInfo(
            id=_text(i.id), state=_text(i.state), template=_text(i.template_name),
            profile=_text(i.profile), provider=_text(i.provider), isolation=_text(i.isolation),
            policy=json.loads(policy) if policy.startswith("{") else policy,
            user_id=_text(i.user_id) or None, thread_id=_text(i.thread_id) or None,
            metadata=json.loads(library.take_text(library.dll.paddock_sandbox_metadata(handle))),
            limits={"memory_bytes": i.memory, "pids": i.pids, "cpu": i.cpu_milli / 1000,
                    "disk_bytes": i.disk, "files": i.files},
            created_at=_time(i.created_ms), expires_at=_time(i.expires_ms),
            last_used_at=_time(i.last_used_ms), ended_at=_time(i.ended_ms),
            end_cause=_text(i.end_cause) or None, end_reason=_text(i.end_reason) or None,
            idle_timeout_s=i.idle_timeout_ms / 1000, max_life_s=i.max_life_ms / 1000,
            from_pool=bool(i.from_pool), recreated=bool(i.recreated),
            replaces=_text(i.replaces) or None, processes=i.processes, created=created)

    def _given(self, library: _Library, handle: int, created: bool = False) -> SandboxInfo:
        try:
            return self._describe(library, handle, created)
        finally:
            library.dll.paddock_release(handle)

    def create(self, options: SandboxOptions, *, user_id: Optional[str] = None,
               thread_id: Optional[str] = None) -> SandboxInfo:
        library = self._library()
        o = self._options(options, user_id, thread_id, False)
        return self._given(library, library.call("create", library.handle, byref(o)), True)

    def get_or_create(self, user_id: str, thread_id: str, options: SandboxOptions, *,
                      auto_retry: bool = False) -> SandboxInfo:
        library = self._library()
        created = c_int(0)
        o = self._options(options, user_id, thread_id, auto_retry)
        handle = library.call("get_or_create", library.handle, byref(o), byref(created))
        return self._given(library, handle, bool(created.value))

    def find(self, sandbox_id: str) -> SandboxInfo:
        with self._box(sandbox_id) as (library, box):
            return self._describe(library, box)

    def find_session(self, user_id: str, thread_id: str) -> SandboxInfo:
        library = self._library()
        return self._given(library, library.call(
            "find_thread", library.handle, _bytes(user_id, "user_id"),
            _bytes(thread_id, "thread_id")))

    def list(self, *, state: Optional[str] = None, user_id: Optional[str] = None,
             thread_id: Optional[str] = None,
             metadata: Optional[Mapping[str, str]] = None) -> Iterator[SandboxInfo]:
        library = self._library()
        f = native.Filter(size=ctypes.sizeof(native.Filter))
        f.state = _maybe(state, "state")
        f.user_id = _maybe(user_id, "user_id")
        f.thread_id = _maybe(thread_id, "thread_id")
        f.metadata = _pairs(metadata, "metadata")
        found: List[SandboxInfo] = []
        with _Told(lambda _, handle: found.append(self._describe(library, handle))) as told:
            library.call("list", library.handle, byref(f), native.EACH_HANDLE(told), None)
        return iter(found)

    def end(self, sandbox_id: str) -> bool:
        try:
            with self._box(sandbox_id) as (library, box):
                library.call("end", box, 0)
        except NotFoundError:
            return False
        with self._lock:
            gone = [key for key in self._forwards if key[0] == sandbox_id]
            forwards = [self._forwards.pop(key) for key in gone]
        for forward in forwards:
            forward.close()
        return True

    def pause(self, sandbox_id: str) -> SandboxInfo:
        with self._box(sandbox_id) as (library, box):
            library.call("pause", box)
            return self._describe(library, box)

    def resume(self, sandbox_id: str) -> SandboxInfo:
        with self._box(sandbox_id) as (library, box):
            library.call("resume", box)
            return self._describe(library, box)

    def extend(self, sandbox_id: str, *, idle_timeout_s: Optional[float] = None,
               expires_in_s: Optional[float] = None) -> SandboxInfo:
        with self._box(sandbox_id) as (library, box):
            library.call("extend", box, _ms(idle_timeout_s, "idle_timeout_s", 1),
                         _ms(expires_in_s, "expires_in_s", 1))
            return self._describe(library, box)

    def move_sandbox(self, sandbox_id: str, provider: str, *, give_up: bool = False) -> SandboxInfo:
        raise UnsupportedError(
            f"provider: the library moves no sandbox to '{provider}': make another one there, or use "
            "the mode 'remote' with a server", details={"field": "provider"})

    def usage(self, sandbox_id: str) -> Usage:
        u = native.Usage(size=ctypes.sizeof(native.Usage))
        with self._box(sandbox_id) as (library, box):
            library.call("usage", box, byref(u))
            limits = self._describe(library, box).limits
        now = datetime.now(timezone.utc)
        return Usage(time=_time(int(now.timestamp() * 1000)) or "", memory_bytes=u.memory,
                     memory_peak_bytes=u.memory_peak, cpu_time_ms=u.cpu_usec / 1000, pids=u.pids,
                     limits=limits)

    # ---- commands ----

    def _check_mode(self, sandbox_id: str, execution_mode: Optional[str]) -> None:
        """The library moves no sandbox, so a command has what its sandbox has, or does not run."""
        if execution_mode is None:
            return
        mode = check_name("execution mode", execution_mode, EXECUTION_MODES, "execution_mode=")
        isolation = self.find(sandbox_id).isolation
        if (mode == "local") != (isolation == "none"):
            raise UnsupportedError(
                f"execution_mode: this sandbox has the isolation '{isolation}', which is not for "
                f"'{mode}', and the library moves no sandbox: make one with that mode, or use a "
                "server", details={"field": "execution_mode"})

    @staticmethod
    def _command(command: Command, cwd: Optional[str], env: Optional[Mapping[str, str]],
                 user: Optional[str], timeout_s: Optional[float]) -> native.Command:
        c = native.Command(size=ctypes.sizeof(native.Command))
        if isinstance(command, str):
            c.command = _bytes(command, "command")
            if not command:
                raise _refuse("command", "is empty")
        else:
            c.argv = _strings(command, "argv")
        c.cwd = _maybe(cwd, "cwd")
        if env:
            c.env = _pairs(env, "env")
        if user is not None:
            c.user = _bytes(user, "user")
        c.timeout_ms = _ms(timeout_s, "timeout_s")
        return c

    def exec(self, sandbox_id: str, command: Command, *, cwd: Optional[str] = None,
             env: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
             stdin: Union[str, bytes, None] = None, timeout_s: Optional[float] = 30,
             output_max_bytes: Optional[int] = None, on_stdout: Optional[OutputCallback] = None,
             on_stderr: Optional[OutputCallback] = None, retry_key: Optional[str] = None,
             execution_mode: Optional[str] = None) -> ExecResult:
        self._check_mode(sandbox_id, execution_mode)
        c = self._command(command, cwd, env, user, timeout_s)
        if stdin is not None:
            data = stdin.encode() if isinstance(stdin, str) else bytes(stdin)
            c.input, c.input_len = data, len(data)
        if output_max_bytes is not None:
            c.output_max = output_max_bytes or 1
        c.key = _maybe(retry_key, "retry_key")
        r = native.Result(size=ctypes.sizeof(native.Result))

        def tell(_: object, stream: int, memory: int, size: int) -> None:
            callback = on_stderr if stream else on_stdout
            if callback:
                callback(string_at(memory, size))

        library = self._library()
        box = library.call("find", library.handle, _bytes(sandbox_id, "sandbox_id"))
        try:
            if on_stdout or on_stderr:
                with _Told(tell) as told, self._cancel(library) as cancel:
                    c.cancel = cancel
                    c.on_output = native.ON_OUTPUT(told)
                    library.call("exec", box, byref(c), byref(r))
            elif current() is not None:
                with self._cancel(library) as cancel:
                    c.cancel = cancel
                    library.call("exec", box, byref(c), byref(r))
            else:
                library.call("exec", box, byref(c), byref(r))
        finally:
            library.dll.paddock_release(box)
        try:
            return self._result(r)
        finally:
            library.dll.paddock_result_done(byref(r))

    @staticmethod
    def _result(r: native.Result) -> ExecResult:
        out_cut, err_cut = r.out_total > r.out_len, r.err_total > r.err_len
        return ExecResult(
            exit_code=None if r.signal else r.exit_code,
            stdout=shortened(string_at(r.out, r.out_len), r.out_head, r.out_total, out_cut),
            stderr=shortened(string_at(r.err, r.err_len), r.err_head, r.err_total, err_cut),
            signal=_signal_name(r.signal), timed_out=bool(r.timed_out),
            stopped_by=_text(r.stopped_by) or None,
            state=None if r.state < 0 else "updated" if r.state else "kept",
            execution_time_ms=r.duration_us / 1000, cpu_time_ms=r.cpu_usec / 1000,
            max_rss_bytes=r.max_rss, process_id=_text(r.process_id), pid=r.pid,
            stdout_truncated=out_cut, stderr_truncated=err_cut, stdout_bytes=r.out_total,
            stderr_bytes=r.err_total)

    # ---- code contexts ----

    def create_context(self, sandbox_id: str, *, language: str = "python",
                       cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
                       name: Optional[str] = None) -> ContextInfo:
        o = native.ContextOptions(size=ctypes.sizeof(native.ContextOptions))
        o.language = _bytes(language, "language")
        o.cwd = _maybe(cwd, "cwd")
        o.name = _maybe(name, "name")
        o.env = _pairs(env, "env")
        told = c_void_p()
        with self._box(sandbox_id) as (library, box):
            library.call("context_create", box, byref(o), byref(told))
        return ContextInfo.from_json(json.loads(library.take_text(told.value)))

    def contexts(self, sandbox_id: str) -> List[ContextInfo]:
        told = c_void_p()
        with self._box(sandbox_id) as (library, box):
            library.call("context_list", box, byref(told))
        return [ContextInfo.from_json(c) for c in json.loads(library.take_text(told.value))]

    def remove_context(self, sandbox_id: str, context_id: str) -> None:
        with self._box(sandbox_id) as (library, box):
            library.call("context_delete", box, _bytes(context_id, "context"))

    def restart_context(self, sandbox_id: str, context_id: str) -> ContextInfo:
        told = c_void_p()
        with self._box(sandbox_id) as (library, box):
            library.call("context_restart", box, _bytes(context_id, "context"), byref(told))
        return ContextInfo.from_json(json.loads(library.take_text(told.value)))

    def fork_context(self, sandbox_id: str, context_id: str, *,
                     force: bool = False) -> ContextInfo:
        told = c_void_p()
        with self._box(sandbox_id) as (library, box):
            library.call("context_fork", box, _bytes(context_id, "context"), force, byref(told))
        return ContextInfo.from_json(json.loads(library.take_text(told.value)))

    def undo_context(self, sandbox_id: str, context_id: str) -> ContextInfo:
        told = c_void_p()
        with self._box(sandbox_id) as (library, box):
            library.call("context_undo", box, _bytes(context_id, "context"), byref(told))
        return ContextInfo.from_json(json.loads(library.take_text(told.value)))

    def interrupt_context(self, sandbox_id: str, context_id: str) -> bool:
        with self._box(sandbox_id) as (library, box):
            return bool(library.call("context_interrupt", box, _bytes(context_id, "context")))

    def execute(self, sandbox_id: str, context_id: str, code: str, on_event: EventCallback, *,
                env: Optional[Mapping[str, str]] = None, timeout_s: Optional[float] = None,
                keep_before: bool = False) -> None:
        text = code.encode("utf-8", "surrogatepass")
        c = native.Cell(size=ctypes.sizeof(native.Cell), code=text, code_len=len(text))
        c.context = _bytes(context_id, "context")
        c.env = _pairs(env, "env")
        c.timeout_ms = _ms(timeout_s, "timeout_s")
        c.keep_before = keep_before

        def tell(_: object, memory: int, size: int) -> None:
            on_event(json.loads(string_at(memory, size)))

        with self._box(sandbox_id) as (library, box):
            with _Told(tell) as told, self._cancel(library) as cancel:
                c.cancel = cancel
                c.on_event = native.ON_EVENT(told)
                library.call("run_cell", box, byref(c))

    # ---- processes ----

    @staticmethod
    def _process_info(library: _Library, handle: int) -> native.ProcessInfo:
        i = native.ProcessInfo(size=ctypes.sizeof(native.ProcessInfo))
        library.call("process_get", handle, byref(i))
        return i

    def _described(self, library: _Library, handle: int) -> ProcessInfo:
        i = self._process_info(library, handle)
        return ProcessInfo(
            pid=i.pid, process_id=_text(i.id), command=_text(i.command), running=bool(i.running),
            exit_code=None if i.running or i.signal else i.exit_code,
            signal=_signal_name(i.signal), stopped_by=_text(i.stopped_by) or None,
            timed_out=bool(i.timed_out), started_at=_time(i.started_ms), ended_at=_time(i.ended_ms),
            pty=bool(i.pty), background=bool(i.background), stdin_open=bool(i.stdin_open),
            stdout_bytes=i.out_bytes, stderr_bytes=i.err_bytes, stdout_first=i.out_first,
            stderr_first=i.err_first, execution_time_ms=i.duration_us / 1000,
            cpu_time_ms=i.cpu_usec / 1000, max_rss_bytes=i.max_rss)

    def start(self, sandbox_id: str, command: Command, *, cwd: Optional[str] = None,
              env: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
              stdin: bool = False, pty: bool = False, rows: int = 24, cols: int = 80,
              timeout_s: Optional[float] = None, back_pressure: bool = False,
              execution_mode: Optional[str] = None) -> ProcessInfo:
        self._check_mode(sandbox_id, execution_mode)
        c = self._command(command, cwd, env, user, timeout_s)
        c.keep_stdin, c.pty, c.back_pressure = stdin, pty, back_pressure
        c.rows, c.cols = rows, cols
        with self._box(sandbox_id) as (library, box):
            handle = library.call("start", box, byref(c))
            try:
                return self._described(library, handle)
            finally:
                library.dll.paddock_process_release(handle)

    def processes(self, sandbox_id: str) -> List[ProcessInfo]:
        found: List[ProcessInfo] = []
        with self._box(sandbox_id) as (library, box):
            with _Told(lambda _, handle: found.append(self._described(library, handle))) as told:
                library.call("each_process", box, native.EACH_HANDLE(told), None)
        return found

    def process(self, sandbox_id: str, pid: Union[int, str]) -> ProcessInfo:
        with self._process(sandbox_id, pid) as (library, handle):
            return self._described(library, handle)

    def signal(self, sandbox_id: str, pid: Union[int, str], signal: Union[int, str]) -> None:
        with self._process(sandbox_id, pid) as (library, handle):
            library.call("process_signal", handle, _signal_number(signal))

    def kill(self, sandbox_id: str, pid: Union[int, str]) -> None:
        self.signal(sandbox_id, pid, signals.SIGKILL.value)

    def write_stdin(self, sandbox_id: str, pid: Union[int, str], data: bytes, *,
                    close: bool = False) -> None:
        with self._process(sandbox_id, pid) as (library, handle):
            if data:
                library.call("process_write", handle, bytes(data), len(data), int(STDIN_S * 1000))
            if close:
                library.call("process_close_stdin", handle)

    def resize(self, sandbox_id: str, pid: Union[int, str], rows: int, cols: int) -> None:
        with self._process(sandbox_id, pid) as (library, handle):
            library.call("process_resize", handle, rows, cols)

    @staticmethod
    def _read(library: _Library, handle: int, stream: int, offset: int, size: int) -> bytes:
        room = ctypes.create_string_buffer(size)
        n = library.call("process_read", handle, stream, offset, room, size)
        return room.raw[:n]

    def read_output(self, sandbox_id: str, pid: Union[int, str], *, stream: str = "stdout",
                    offset: int = 0, limit: Optional[int] = None) -> OutputChunk:
        if stream not in ("stdout", "stderr"):
            raise _refuse("stream", f"'{stream}': stdout or stderr")
        number = int(stream == "stderr")
        with self._process(sandbox_id, pid) as (library, handle):
            i = self._process_info(library, handle)
            data = b""
            while limit is None or len(data) < limit:
                want = PIECE if limit is None else min(PIECE, limit - len(data))
                piece = self._read(library, handle, number, offset + len(data), want)
                if not piece:
                    break
                data += piece
        return OutputChunk(data=data, next_offset=offset + len(data),
                           first_offset=i.err_first if number else i.out_first,
                           running=bool(i.running))

    def follow(self, sandbox_id: str, pid: Union[int, str], *,
               offsets: Optional[Tuple[int, int]] = None) -> Iterator[OutputEvent]:
        at = [*(offsets or (0, 0))]
        with self._process(sandbox_id, pid) as (library, handle), self._cancel(library) as cancel:
            while True:
                i = self._process_info(library, handle)
                told = False
                for number, (size, first) in enumerate(((i.out_bytes, i.out_first),
                                                        (i.err_bytes, i.err_first))):
                    at[number] = max(at[number], first)
                    if at[number] >= size:
                        continue
                    data = self._read(library, handle, number, at[number], 32768)
                    at[number] += len(data)
                    told = bool(data)
                    if data:
                        yield OutputEvent("stderr" if number else "stdout", data, at[0], at[1])
                if told:
                    continue
                if not i.running:
                    yield OutputEvent("exit", b"", at[0], at[1], ExecResult(
                        exit_code=None if i.signal else i.exit_code, signal=_signal_name(i.signal),
                        timed_out=bool(i.timed_out), stopped_by=_text(i.stopped_by) or None,
                        state=None if i.state < 0 else "updated" if i.state else "kept",
                        execution_time_ms=i.duration_us / 1000, cpu_time_ms=i.cpu_usec / 1000,
                        max_rss_bytes=i.max_rss, process_id=_text(i.id), pid=i.pid,
                        stdout_bytes=i.out_bytes, stderr_bytes=i.err_bytes))
                    return
                library.call("process_wait", handle, at[0], at[1], native.FOREVER, cancel)

    # ---- files ----

    def _one(self, name: str, sandbox_id: str, *arguments: object,
             cancels: bool = False) -> Entry:
        """A call that tells about one entry."""
        found: List[Entry] = []
        with _Told(lambda _, entry: found.append(_entry(entry.contents))) as told, \
                self._box(sandbox_id) as (library, box), self._cancel(library) as cancel:
            more = (cancel,) if cancels else ()
            library.call(name, box, *arguments, *more, native.EACH_ENTRY(told), None)
        return found[0]

    def _piece(self, sandbox_id: str, path: str, user: Optional[str], offset: int,
               length: int) -> Tuple[bytes, int]:
        memory, size, whole = c_void_p(), c_size_t(), c_uint64()
        with self._box(sandbox_id) as (library, box), self._cancel(library) as cancel:
            library.call("file_read", box, _bytes(path, "path"), _maybe(user, "user"), offset,
                         length, cancel, byref(memory), byref(size), byref(whole))
        try:
            return string_at(memory, size.value), whole.value
        finally:
            library.dll.paddock_free(memory)

    def read_file(self, sandbox_id: str, path: str, *, offset: int = 0,
                  length: Optional[int] = None, user: Optional[str] = None) -> bytes:
        if length is not None and length <= 0:
            return b""
        return self._piece(sandbox_id, path, user, offset,
                           native.FOREVER if length is None else length)[0]

    def iter_file(self, sandbox_id: str, path: str, *,
                  user: Optional[str] = None) -> Iterator[bytes]:
        # The first piece at once: who asks for a file that is not there hears of it here.
        first, size = self._piece(sandbox_id, path, user, 0, PIECE)

        def pieces() -> Iterator[bytes]:
            data, at = first, 0
            while data:
                yield data
                at += len(data)
                if at >= size:
                    return
                data = self._piece(sandbox_id, path, user, at, min(PIECE, size - at))[0]
        return pieces()

    def write_file(self, sandbox_id: str, path: str, data: FileData, *,
                   mode: Optional[int] = None, mkdirs: bool = True,
                   user: Optional[str] = None) -> Entry:
        o = native.WriteOptions(size=ctypes.sizeof(native.WriteOptions), mkdirs=mkdirs)
        o.user = _maybe(user, "user")
        if mode is not None:
            o.mode = mode
        if isinstance(data, str):
            data = data.encode()
        if isinstance(data, (bytes, bytearray)):
            whole = bytes(data)
            return self._one("file_write", sandbox_id, _bytes(path, "path"), whole, len(whole),
                             byref(o))
        found: List[Entry] = []
        with self._box(sandbox_id) as (library, box):
            writer = library.call("writer_open", box, _bytes(path, "path"), byref(o))
            try:
                for piece in _pieces(data):
                    library.call("writer_write", writer, piece, len(piece))
            except BaseException:
                library.dll.paddock_writer_finish(writer, 0, native.EACH_ENTRY(), None, None)
                raise
            with _Told(lambda _, entry: found.append(_entry(entry.contents))) as told:
                library.call("writer_finish", writer, 1, native.EACH_ENTRY(told), None)
        return found[0]

    def list_files(self, sandbox_id: str, path: str = ".", *, depth: int = 1,
                   user: Optional[str] = None) -> List[Entry]:
        found: List[Entry] = []
        with _Told(lambda _, entry: found.append(_entry(entry.contents))) as told, \
                self._box(sandbox_id) as (library, box), self._cancel(library) as cancel:
            library.call("file_list", box, _bytes(path, "path"), _maybe(user, "user"), depth,
                         cancel, native.EACH_ENTRY(told), None)
        return found

    def stat(self, sandbox_id: str, path: str, *, user: Optional[str] = None) -> Entry:
        return self._one("file_stat", sandbox_id, _bytes(path, "path"), _maybe(user, "user"))

    def remove(self, sandbox_id: str, path: str, *, recursive: bool = False,
               user: Optional[str] = None) -> None:
        with self._box(sandbox_id) as (library, box), self._cancel(library) as cancel:
            library.call("file_remove", box, _bytes(path, "path"), _maybe(user, "user"), recursive,
                         cancel)

    def mkdir(self, sandbox_id: str, path: str, *, parents: bool = True,
              mode: Optional[int] = None, user: Optional[str] = None) -> Entry:
        return self._one("file_mkdir", sandbox_id, _bytes(path, "path"), _maybe(user, "user"),
                         parents, mode or 0)

    def move(self, sandbox_id: str, source: str, target: str, *, overwrite: bool = False,
             user: Optional[str] = None) -> Entry:
        return self._one("file_move", sandbox_id, _bytes(source, "from"), _bytes(target, "to"),
                         _maybe(user, "user"), overwrite)

    def copy(self, sandbox_id: str, source: str, target: str, *, recursive: bool = False,
             user: Optional[str] = None) -> Entry:
        return self._one("file_copy", sandbox_id, _bytes(source, "from"), _bytes(target, "to"),
                         _maybe(user, "user"), recursive, cancels=True)

    def chmod(self, sandbox_id: str, path: str, mode: int, *,
              user: Optional[str] = None) -> Entry:
        return self._one("file_chmod", sandbox_id, _bytes(path, "path"), _maybe(user, "user"), mode)

    @staticmethod
    def _hunt(pattern: str, path: str, mode: str, glob: Optional[str],
              user: Optional[str]) -> native.Search:
        q = native.Search(size=ctypes.sizeof(native.Search))
        q.path, q.pattern = _bytes(path, "path"), _bytes(pattern, "pattern")
        q.mode, q.glob, q.user = _bytes(mode, "mode"), _maybe(glob, "glob"), _maybe(user, "user")
        return q

    def search(self, sandbox_id: str, pattern: str, path: str = ".", *, mode: str = "literal",
               glob: Optional[str] = None, case_sensitive: bool = True, limit: int = 1000,
               user: Optional[str] = None) -> SearchResult:
        q = self._hunt(pattern, path, mode, glob, user)
        q.ignore_case, q.limit = not case_sensitive, limit
        more = c_int(0)
        found: List[Match] = []

        def tell(_: object, match: Any) -> None:
            m = match.contents
            found.append(Match(
                path=_text(m.path), line=m.line or None, column=m.column or None,
                text=_text(m.text) if m.line else None))

        with _Told(tell) as told, self._box(sandbox_id) as (library, box), \
                self._cancel(library) as cancel:
            q.cancel = cancel
            library.call("file_search", box, byref(q), native.EACH_MATCH(told), None, byref(more))
        return SearchResult(found, bool(more.value))

    def replace(self, sandbox_id: str, pattern: str, replacement: str, path: str = ".", *,
                mode: str = "literal", glob: Optional[str] = None, dry_run: bool = False,
                user: Optional[str] = None) -> List[Replaced]:
        q = self._hunt(pattern, path, mode, glob, user)
        q.replacement, q.dry_run = _bytes(replacement, "replacement"), dry_run
        found: List[Replaced] = []
        with _Told(lambda _, name, count: found.append(Replaced(_text(name), count))) as told, \
                self._box(sandbox_id) as (library, box), self._cancel(library) as cancel:
            q.cancel = cancel
            library.call("file_replace", box, byref(q), native.EACH_REPLACED(told), None)
        return found

    def watch(self, sandbox_id: str, path: str = ".", *, recursive: bool = False,
              user: Optional[str] = None) -> Iterator[Dict[str, str]]:
        waiting: "queue.Queue[Union[Dict[str, str], BaseException, None]]" = queue.Queue(
            WATCH_EVENTS)
        library = self._library()
        cancel = library.call("cancel_new")

        def tell(_: object, event: bytes, name: bytes, to: bytes, is_dir: int) -> None:
            kind = _text(event)
            fields = {"event": kind, "path": _text(to if kind == "moved" else name)}
            if kind == "moved":
                fields["from"] = _text(name)
            if kind != "overflow":
                fields["type"] = "dir" if is_dir else "file"
            waiting.put(fields)

        def run() -> None:
            try:
                with _Told(tell) as told, self._box(sandbox_id) as (_, box):
                    library.call("file_watch", box, _bytes(path, "path"), _maybe(user, "user"),
                                 recursive, cancel, native.EACH_EVENT(told), None)
                waiting.put(None)
            except Cancelled:
                waiting.put(None)
            except BaseException as error:  # told to who waits for events
                waiting.put(error)

        thread = threading.Thread(target=run, name="paddock-watch", daemon=True)
        token = current()
        ends = token.ends(lambda: library.dll.paddock_cancel(cancel)) if token \
            else contextlib.nullcontext()
        try:
            with ends:
                thread.start()
                while True:
                    event = waiting.get()
                    if event is None:
                        if token is not None and token.cancelled:
                            raise Cancelled("the call was cancelled")
                        return
                    if isinstance(event, BaseException):
                        raise event
                    yield event
        finally:
            library.dll.paddock_cancel(cancel)
            while thread.is_alive():
                with contextlib.suppress(queue.Empty):
                    waiting.get_nowait()
                thread.join(0.01)
            library.dll.paddock_cancel_free(cancel)

    # ---- environment, ports ----

    def environment(self, sandbox_id: str) -> Environment:
        env, cwd = c_void_p(), c_void_p()
        with self._box(sandbox_id) as (library, box):
            library.call("env_get", box, byref(env), byref(cwd))
        return Environment(env=json.loads(library.take_text(env.value)),
                           cwd=library.take_text(cwd.value))

    def set_environment(self, sandbox_id: str, env: Optional[Mapping[str, Optional[str]]] = None,
                        cwd: Optional[str] = None) -> Environment:
        sets = {name: value for name, value in (env or {}).items() if value is not None}
        unsets = [name for name, value in (env or {}).items() if value is None]
        with self._box(sandbox_id) as (library, box):
            library.call("env_set", box, _pairs(sets, "env"),
                         _strings(unsets, "env") if unsets else None, _maybe(cwd, "cwd"))
        return self.environment(sandbox_id)

    def ports(self, sandbox_id: str) -> List[PortInfo]:
        found: List[PortInfo] = []

        def tell(_: object, port: int, address: bytes, pid: int, command: bytes) -> None:
            found.append(PortInfo(port=port, address=_text(address), pid=pid or None,
                                  command=_text(command) or None))

        with _Told(tell) as told, self._box(sandbox_id) as (library, box):
            library.call("each_port", box, native.EACH_PORT(told), None)
        return found

    def dial(self, sandbox_id: str, port: int) -> int:
        """A socket that is connected to a port of the sandbox; its descriptor."""
        with self._box(sandbox_id) as (library, box):
            return int(library.call("dial", box, port))

    def _forward(self, sandbox_id: str, port: int) -> Forward:
        self.find(sandbox_id)
        key = (sandbox_id, int(port))
        with self._lock:
            if key not in self._forwards:
                self._forwards[key] = Forward(lambda: self.dial(*key))
            return self._forwards[key]

    def preview(self, sandbox_id: str, port: int, *, expires_in_s: float = 3600) -> Preview:
        forward = self._forward(sandbox_id, port)
        end = datetime.now(timezone.utc).timestamp() + expires_in_s
        return Preview(url=f"http://127.0.0.1:{forward.port}/", expires_at=_time(int(end * 1000)))

    def host(self, sandbox_id: str, port: int) -> str:
        return f"127.0.0.1:{self._forward(sandbox_id, port).port}"

    def providers(self) -> List[str]:
        return _text(self._library_info().providers).split(", ")

    def _library_info(self) -> native.Info:
        library = self._library()
        i = native.Info(size=ctypes.sizeof(native.Info))
        library.call("get_info", library.handle, byref(i))
        return i

    def info(self) -> Dict[str, str]:
        library = self._library()
        i = self._library_info()
        answer = {"mode": self.mode, "program": _text(i.program), "isolation": _text(i.isolation),
                  "version": _text(library.dll.paddock_version())}
        if i.missing:
            answer["missing"] = _text(i.missing)
        return answer

    def close(self) -> None:
        """There are no connections to let go of."""


class _Told:
    """A function for the library to call, whose exceptions come out of the `with` around the call.

    They also end what the library is doing: it is told to stop.
    """

    def __init__(self, tell: Callable[..., object]) -> None:
        self._tell = tell
        self._raised: Optional[BaseException] = None

    def __call__(self, *arguments: object) -> int:
        try:
            self._tell(*arguments)
        except BaseException as error:  # no exception crosses C
            self._raised = error
            return 1
        return 0

    def __enter__(self) -> "_Told":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._raised is not None:
            raise self._raised


def _pieces(data: object) -> Iterator[bytes]:
    read = getattr(data, "read", None)
    if read is None:
        for piece in data:  # type: ignore[attr-defined]
            yield bytes(piece)
        return
    while True:
        piece = read(PIECE)
        if not piece:
            return
        yield piece.encode() if isinstance(piece, str) else bytes(piece)
