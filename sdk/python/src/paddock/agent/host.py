"""`--sandbox none`: the tools on this machine, in the current directory, without any wall.

How this works: `HostBackend` has those methods of a backend that the tools use, with the same
meaning. A command is a bash in a session of its own, so that its end takes its children along. Its
directory and exported variables go to the next one through a file. The environment of commands has
no keys of models: they get only the variables that are named here.
"""

from __future__ import annotations

import codecs
import fnmatch
import os
import re
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from .. import _cancel
from ..errors import ConflictError, InvalidArgumentError, NotFoundError, PaddockError, error_of
from ..models import Entry, Environment, ExecResult, Match, OutputChunk, ProcessInfo, Replaced, SandboxInfo, \
    SearchResult
from .text import Kept

# What commands find of the agent's environment.
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "TMPDIR",
           "VIRTUAL_ENV", "PYTHONPATH", "SSH_AUTH_SOCK", "DISPLAY", "XDG_RUNTIME_DIR")
_KEEP = 'trap \'{ pwd; env -0; } >&"$PADDOCK_STATE_FD"\' EXIT; eval "$1"'
BACKGROUND_MAX = 1024 * 1024  # of each stream of a process, the newest
AFTER_S = 0.3  # for the last output of what has ended, if children hold the pipe
WALK_MAX = 200000  # entries that a listing or a search looks at


class _Process:
    """A process in the background."""

    def __init__(self, child: "subprocess.Popen[bytes]", command: str) -> None:
        self.child = child
        self.command = command
        self.streams = {"stdout": bytearray(), "stderr": bytearray()}
        self.first = {"stdout": 0, "stderr": 0}
        self.lock = threading.Lock()
        for name, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            threading.Thread(target=self._read, args=(name, pipe), daemon=True).start()

    def _read(self, name: str, pipe: Any) -> None:
        while True:
            data = os.read(pipe.fileno(), 65536)
            if not data:
                return
            with self.lock:
                kept = self.streams[name]
                kept += data
                over = max(len(kept) - BACKGROUND_MAX, 0)
                del kept[:over]
                self.first[name] += over

    def info(self) -> ProcessInfo:
        status = self.child.poll()
        with self.lock:
            first = dict(self.first)
            sizes = {name: first[name] + len(data) for name, data in self.streams.items()}
        return ProcessInfo(
            pid=self.child.pid, process_id=str(self.child.pid), command=self.command, running=status is None,
            exit_code=status if status is not None and status >= 0 else None,
            signal=_signal(status), stdout_bytes=sizes["stdout"], stderr_bytes=sizes["stderr"],
            stdout_first=first["stdout"], stderr_first=first["stderr"])


def _signal(status: Optional[int]) -> Optional[str]:
    if status is None or status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return "SIGRT"


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """Ends a process with its whole session's first group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()


class HostBackend:
    """This machine, as the tools use a backend. `sandbox_id` is not looked at."""

    mode = "host"

    def __init__(self, folder: Path, environ: Optional[Mapping[str, str]] = None) -> None:
        self.folder = folder
        env = os.environ if environ is None else environ
        self._env = {name: env[name] for name in _PASSED if name in env}
        self._cwd = str(folder)
        self._processes: Dict[int, _Process] = {}

    # ---- commands ----

    def _start(self, command: str, cwd: Optional[str], stdin: int, state: Optional[int]) -> "subprocess.Popen[bytes]":
        env = dict(self._env)
        line = [command]
        if state is not None:
            env["PADDOCK_STATE_FD"] = str(state)
            line = [_KEEP, "bash", command]
        try:
            return subprocess.Popen(["/bin/bash", "-c", *line], cwd=cwd or self._cwd, env=env, stdin=stdin,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                    pass_fds=[state] if state is not None else [])
        except (OSError, ValueError) as error:
            raise _explained(error) from None

    def exec(self, _: str, command: str, *, cwd: Optional[str] = None, timeout_s: Optional[float] = 30,
             output_max_bytes: int = 65536, on_stdout: Optional[Callable[[bytes], None]] = None,
             on_stderr: Optional[Callable[[bytes], None]] = None, **__: object) -> ExecResult:
        with tempfile.TemporaryFile() as state:
            child = self._start(command, cwd, subprocess.DEVNULL, state.fileno())
            began = time.monotonic()
            kept = (Kept(output_max_bytes), Kept(output_max_bytes))
            try:
                with _cancel.ended_by(lambda: end_group(child)):
                    timed_out = _follow(child, began + timeout_s if timeout_s else None,
                                        ((kept[0], on_stdout), (kept[1], on_stderr)))
            finally:
                end_group(child) if child.poll() is None else None
                child.wait()
                for pipe in (child.stdout, child.stderr):
                    assert pipe is not None
                    pipe.close()
            if _cancel.cancelled():
                raise _cancel.Cancelled("the call was cancelled")
            if not timed_out:
                self._keep_state(state)
        status = child.returncode
        return ExecResult(
            exit_code=status if status >= 0 else None, signal=_signal(status), timed_out=timed_out,
            stopped_by="timeout" if timed_out else None, stdout=kept[0].text(), stderr=kept[1].text(),
            execution_time_ms=(time.monotonic() - began) * 1000)

    def _keep_state(self, state: Any) -> None:
        state.seek(0)
        cwd, newline, env = state.read(1024 * 1024).partition(b"\n")
        if not newline or not os.path.isdir(cwd):
            return
        self._cwd = os.fsdecode(cwd)
        pairs = (os.fsdecode(pair).partition("=") for pair in env.split(b"\0") if b"=" in pair)
        self._env = {name: value for name, _, value in pairs if name not in ("PADDOCK_STATE_FD", "_", "SHLVL")}

    def start(self, _: str, command: str, *, cwd: Optional[str] = None, **__: object) -> ProcessInfo:
        process = _Process(self._start(command, cwd, subprocess.PIPE, None), command)
        self._processes[process.child.pid] = process
        return process.info()

    def _find(self, pid: Union[int, str]) -> _Process:
        found = self._processes.get(int(pid))
        if found is None:
            raise NotFoundError(f"there is no process {pid} of start_process")
        return found

    def process(self, _: str, pid: Union[int, str]) -> ProcessInfo:
        return self._find(pid).info()

    def processes(self, _: str) -> List[ProcessInfo]:
        return [p.info() for p in self._processes.values()]

    def kill(self, _: str, pid: Union[int, str]) -> None:
        end_group(self._find(pid).child)

    def write_stdin(self, _: str, pid: Union[int, str], data: bytes, **__: object) -> None:
        pipe = self._find(pid).child.stdin
        assert pipe is not None
        try:
            pipe.write(data)
            pipe.flush()
        except (OSError, ValueError):
            raise ConflictError(f"process {pid} reads no input any more") from None

    def read_output(self, _: str, pid: Union[int, str], *, stream: str = "stdout", offset: int = 0,
                    limit: Optional[int] = None) -> OutputChunk:
        process = self._find(pid)
        with process.lock:
            first = process.first[stream]
            begin = max(offset, first) - first
            data = bytes(process.streams[stream][begin:begin + limit if limit else None])
        return OutputChunk(data, max(offset, first) + len(data), first, process.child.poll() is None)

    def end(self, _: str) -> bool:
        for process in self._processes.values():
            if process.child.poll() is None:
                end_group(process.child)
                process.child.wait()
        return True

    # ---- files ----

    def path(self, path: str) -> Path:
        """Where a path of the model is: relative ones are below the project."""
        return Path(os.path.normpath(self.folder / path))

    def stat(self, _: str, path: str, **__: object) -> Entry:
        return self._entry(self.path(path))

    @staticmethod
    def _entry(path: Path) -> Entry:
        try:
            s = path.stat()
        except (OSError, ValueError) as error:
            raise _explained(error) from None
        kind = "dir" if path.is_dir() else "file" if path.is_file() else "other"
        return Entry(name=path.name, path=str(path), type=kind, size=s.st_size)

    def read_file(self, _: str, path: str, *, length: Optional[int] = None, **__: object) -> bytes:
        where = self.path(path)
        if not where.is_file():
            raise NotFoundError(f"'{path}' is no file")
        try:
            with open(where, "rb") as file:
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise _explained(error) from None

    def write_file(self, _: str, path: str, data: bytes, **__: object) -> Entry:
        where = self.path(path)
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            # Beside it first: a full disk leaves the old file as it was.
            handle, name = tempfile.mkstemp(dir=str(where.parent), prefix=".paddock-")
            try:
                with open(handle, "wb") as out:
                    out.write(data)
                mode = where.stat().st_mode & 0o7777 if where.exists() else 0o666 & ~_umask()
                os.chmod(name, mode)
                os.replace(name, os.path.realpath(where))
            except BaseException:
                os.unlink(name)
                raise
        except (OSError, ValueError) as error:
            raise _explained(error) from None
        return self._entry(where)

    def list_files(self, _: str, path: str = ".", *, depth: int = 1, **__: object) -> List[Entry]:
        top = self.path(path)
        if not top.is_dir():
            raise NotFoundError(f"'{path}' is no directory")
        return [self._entry(p) for p, level in self._walk(top, depth) if os.path.exists(p)]

    @staticmethod
    def _walk(top: Path, depth: int) -> List[Tuple[Path, int]]:
        found: List[Tuple[Path, int]] = []
        waiting = [(top, 0)]
        while waiting and len(found) < WALK_MAX and not _cancel.cancelled():
            folder, level = waiting.pop()
            try:
                entries = sorted(os.scandir(folder), key=lambda e: e.name)
            except OSError:
                continue
            for entry in entries:
                found.append((Path(entry.path), level))
                if level + 1 < depth and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), level + 1))
        return found

    def search(self, _: str, pattern: str, path: str = ".", *, mode: str = "literal", glob: Optional[str] = None,
               limit: int = 1000, **__: object) -> SearchResult:
        try:
            wanted = re.compile(pattern if mode == "regex" else re.escape(pattern))
        except re.error as error:
            raise InvalidArgumentError(f"pattern: {error}") from None
        matches: List[Match] = []
        for entry, _level in self._walk(self.path(path), 64):
            if len(matches) > limit:
                break
            if ".git" in entry.parts or not entry.is_file():
                continue
            if mode == "name":
                if fnmatch.fnmatch(entry.name, pattern):
                    matches.append(Match(str(entry)))
            elif glob is None or fnmatch.fnmatch(entry.name, glob):
                matches += _lines_with(entry, wanted, limit + 1 - len(matches))
        return SearchResult(matches[:limit], len(matches) > limit)

    def replace(self, box: str, pattern: str, replacement: str, path: str = ".", *, dry_run: bool = False,
                **__: object) -> List[Replaced]:
        data = self.read_file(box, path)
        what = pattern.encode("utf-8", "surrogatepass")
        if not dry_run:
            self.write_file(box, path, data.replace(what, replacement.encode("utf-8", "surrogatepass")))
        return [Replaced(path, data.count(what))]

    # ---- the rest of what an agent asks for ----

    def get_or_create(self, *_: object, **__: object) -> SandboxInfo:
        return SandboxInfo(id="none", state="running", isolation="none")

    def find(self, _: str) -> SandboxInfo:
        return self.get_or_create()

    def environment(self, _: str) -> Environment:
        return Environment(env=dict(self._env), cwd=self._cwd)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _explained(error: Exception) -> PaddockError:
    if not isinstance(error, OSError):
        return InvalidArgumentError(str(error))
    code = {2: "not_found", 13: "denied", 20: "not_found", 28: "no_space", 122: "no_space"}.get(
        error.errno or 0, "internal")
    return error_of(code, f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))


def _lines_with(path: Path, wanted: "re.Pattern[str]", limit: int) -> List[Match]:
    found: List[Match] = []
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if b"\0" in raw[:1024] or len(found) >= limit or _cancel.cancelled():
                    break
                line = codecs.decode(raw[:65536], "utf-8", "replace").rstrip("\r\n")
                match = wanted.search(line)
                if match:
                    found.append(Match(str(path), number, match.start() + 1, line[:1000]))
    except OSError:
        pass  # what may not be read has no matches
    return found


Sink = Tuple[Kept, Optional[Callable[[bytes], None]]]


def _follow(child: "subprocess.Popen[bytes]", until: Optional[float], sinks: Tuple[Sink, Sink]) -> bool:
    """Reads both streams until the process has ended. True when its time was over; it is ended then."""
    timed_out, last = False, None

    def end_late() -> bool:
        """Ends it when its time is over or the call was cancelled; True for the former."""
        is_late = until is not None and time.monotonic() > until
        if is_late or _cancel.cancelled():
            end_group(child)
        return is_late and not _cancel.cancelled()

    with selectors.DefaultSelector() as selector:
        for pipe, sink in zip((child.stdout, child.stderr), sinks):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, sink)
        while selector.get_map():
            if child.poll() is None:
                timed_out = end_late() or timed_out
            else:
                # Children may hold the pipes for ever.
                last = last or time.monotonic() + AFTER_S
                if time.monotonic() > last:
                    break
            for key, _events in selector.select(0.05):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                kept, tell = key.data
                kept.add(data)
                if tell is not None:
                    tell(data)
    while child.poll() is None:
        # Both streams are closed, and it still runs.
        timed_out = end_late() or timed_out
        time.sleep(0.01)
    return timed_out
