"""The backend that talks to a server, by its API v1."""

from __future__ import annotations

import base64
import contextlib
import json
import time
import uuid
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union
from urllib.parse import quote, urlsplit

from . import _cancel
from ._backend import Command, EventCallback, FileData, OutputCallback, as_asked, gone_error
from ._http import RESTART_S, HttpClient
from .errors import InvalidArgumentError, NotFoundError, PaddockError, TransportError, error_of
from .models import (
    ContextInfo, Entry, Environment, ExecResult, Match, OutputChunk, OutputEvent, PortInfo, Preview,
    ProcessInfo, Replaced, SandboxInfo, SandboxOptions, SearchResult, Usage,
)

SILENCE_S = 60.0  # a stream says something every 15 s
OUTPUT_MAX = 1024 * 1024
CREATE_S = 3700.0  # the queue is at most an hour long
MOVE_S = 1800.0  # all files are copied
CONTEXT_S = 120.0  # an interpreter starts, with what it imports in advance


class _Kept:
    """Output as the server keeps it in a record: its head and its tail."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 0)
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > self._limit + 65536:
            del self._tail[:-self._limit]

    def text(self) -> Tuple[str, bool]:
        if self.total <= self._limit:
            return self._head.decode("utf-8", "replace"), False
        whole = bytes(self._head + self._tail)
        head, tail = whole[:self._half], whole[len(whole) - (self._limit - self._half):]
        cut = self.total - len(head) - len(tail)
        return (head.decode("utf-8", "replace") + f"\n[... {cut} bytes left out ...]\n"
                + tail.decode("utf-8", "replace")), True


def _part(value: Union[int, str]) -> str:
    return quote(str(value), safe="")


def _mode(mode: Optional[int]) -> Optional[str]:
    return None if mode is None else format(mode, "04o")


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _command_fields(command: Command, cwd: Optional[str], env: Optional[Mapping[str, str]],
                    user: Optional[str], execution_mode: Optional[str]) -> Dict[str, Any]:
    fields: Dict[str, Any] = {}
    if isinstance(command, str):
        fields["command"] = command
    else:
        fields["argv"] = list(command)
    if cwd is not None:
        fields["cwd"] = cwd
    if env:
        fields["env"] = dict(env)
    if user is not None:
        fields["user"] = user
    if execution_mode is not None:
        fields["mode"] = execution_mode
    return fields


def _output(data: str) -> bytes:
    fields = json.loads(data)
    if "base64" in fields:
        return base64.b64decode(fields["base64"])
    return str(fields["text"]).encode()


def _offsets(text: str) -> Tuple[int, int]:
    out, _, err = text.partition(".")
    return int(out or 0), int(err or 0)


class _Raised(Exception):
    """An error of a callback, which is none of the stream."""

    def __init__(self, error: TransportError) -> None:
        super().__init__(error)
        self.error = error


class _CutOff(_Raised):
    """A stream that ended before the cell's start was told: nobody knows whether it runs."""


def connect(url: str, api_key: Optional[str] = None) -> HttpClient:
    """Connections to a server, with the key."""
    headers = {"User-Agent": "paddock-python", "Accept": "application/json",
               "Accept-Encoding": "identity"}
    if api_key:
        if not api_key.isascii() or not api_key.isprintable():
            raise InvalidArgumentError("api_key: a key has only printable ASCII characters",
                                       details={"field": "api_key"})
        headers["X-API-Key"] = api_key
    return HttpClient(url, headers)


class RemoteBackend:
    """`Backend` over HTTP. See `_backend.Backend` for what the methods mean."""

    mode = "remote"

    def __init__(self, url: str, api_key: Optional[str] = None) -> None:
        self._http = connect(url, api_key)

    # ---- sandboxes ----

    def create(self, options: SandboxOptions, *, user_id: Optional[str] = None,
               thread_id: Optional[str] = None) -> SandboxInfo:
        body = as_asked(options, user_id).given()
        if user_id is not None:
            body["user_id"] = user_id
        if thread_id is not None:
            body["thread_id"] = thread_id
        answer = self._http.request(
            "POST", "/v1/sandboxes", json_body=body, timeout=CREATE_S, idempotent=True,
            headers={"Idempotency-Key": uuid.uuid4().hex})
        return SandboxInfo.from_json({**answer.json(), "created": True})

    def get_or_create(self, user_id: str, thread_id: str, options: SandboxOptions, *,
                      auto_retry: bool = False) -> SandboxInfo:
        body = as_asked(options, user_id).given()
        if auto_retry:
            body["auto_retry"] = True
        answer = self._http.request("PUT", self._session(user_id, thread_id), json_body=body,
                                    timeout=CREATE_S)
        return SandboxInfo.from_json({**answer.json(), "created": answer.status == 201})

    def find(self, sandbox_id: str) -> SandboxInfo:
        return SandboxInfo.from_json(self._http.request("GET", self._box(sandbox_id)).json())

    def find_session(self, user_id: str, thread_id: str) -> SandboxInfo:
        return SandboxInfo.from_json(
            self._http.request("GET", self._session(user_id, thread_id)).json())

    def list(self, *, state: Optional[str] = None, user_id: Optional[str] = None,
             thread_id: Optional[str] = None,
             metadata: Optional[Mapping[str, str]] = None) -> Iterator[SandboxInfo]:
        query: Dict[str, object] = {"state": state, "user_id": user_id, "thread_id": thread_id}
        for name, value in (metadata or {}).items():
            query[f"metadata.{name}"] = value
        while True:
            page = self._http.request("GET", "/v1/sandboxes", query=query).json()
            for data in page["sandboxes"]:
                yield SandboxInfo.from_json(data)
            if not page["next_cursor"]:
                return
            query["cursor"] = page["next_cursor"]

    def end(self, sandbox_id: str) -> bool:
        try:
            self._http.request("DELETE", self._box(sandbox_id), timeout=120, idempotent=True)
        except NotFoundError:
            return False
        return True

    def pause(self, sandbox_id: str) -> SandboxInfo:
        return self._turn(sandbox_id, "pause")

    def resume(self, sandbox_id: str) -> SandboxInfo:
        return self._turn(sandbox_id, "resume")

    def _turn(self, sandbox_id: str, verb: str) -> SandboxInfo:
        return SandboxInfo.from_json(
            self._http.request("POST", self._box(sandbox_id, verb), idempotent=True).json())

    def extend(self, sandbox_id: str, *, idle_timeout_s: Optional[float] = None,
               expires_in_s: Optional[float] = None) -> SandboxInfo:
        body = {"idle_timeout_s": idle_timeout_s, "expires_in_s": expires_in_s}
        answer = self._http.request(
            "POST", self._box(sandbox_id, "extend"), idempotent=True,
            json_body={k: v for k, v in body.items() if v is not None})
        return SandboxInfo.from_json(answer.json())

    def move_sandbox(self, sandbox_id: str, provider: str, *, give_up: bool = False) -> SandboxInfo:
        # Not repeated: a second move would find a sandbox that is there already.
        answer = self._http.request(
            "POST", self._box(sandbox_id, "move"), timeout=MOVE_S,
            json_body={"provider": provider, "give_up": give_up})
        return SandboxInfo.from_json(answer.json())

    def usage(self, sandbox_id: str) -> Usage:
        return Usage.from_json(self._http.request("GET", self._box(sandbox_id, "metrics")).json())

    # ---- commands ----

    def exec(self, sandbox_id: str, command: Command, *, cwd: Optional[str] = None,
             env: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
             stdin: Union[str, bytes, None] = None, timeout_s: Optional[float] = 30,
             output_max_bytes: Optional[int] = None, on_stdout: Optional[OutputCallback] = None,
             on_stderr: Optional[OutputCallback] = None, retry_key: Optional[str] = None,
             execution_mode: Optional[str] = None) -> ExecResult:
        body = _command_fields(command, cwd, env, user, execution_mode)
        body["timeout_s"] = timeout_s or 0
        if isinstance(stdin, bytes):
            body["stdin_base64"] = base64.b64encode(stdin).decode()
        elif stdin is not None:
            body["stdin"] = stdin
        if output_max_bytes is not None:
            body["output_max_bytes"] = output_max_bytes
        headers = {"Idempotency-Key": retry_key} if retry_key else {}
        if on_stdout or on_stderr:
            return self._exec_stream(sandbox_id, body, headers, on_stdout, on_stderr)
        answer = self._http.request(
            "POST", self._box(sandbox_id, "exec"), json_body=body, headers=headers,
            timeout=timeout_s + 60 if timeout_s else None, idempotent=bool(retry_key))
        return ExecResult.from_json(answer.json())

    def _exec_stream(self, sandbox_id: str, body: Dict[str, Any], headers: Dict[str, str],
                     on_stdout: Optional[OutputCallback],
                     on_stderr: Optional[OutputCallback]) -> ExecResult:
        limit = body.pop("output_max_bytes", OUTPUT_MAX)
        kept = {"stdout": _Kept(limit), "stderr": _Kept(limit)}
        tell = {"stdout": on_stdout, "stderr": on_stderr}
        repeatable = "Idempotency-Key" in headers
        headers = {**headers, "Accept": "text/event-stream"}
        end = time.monotonic() + RESTART_S
        while True:
            # Not closed in the middle by a generator's end, but here: that ends the command.
            with self._http.open("POST", self._box(sandbox_id, "exec"), json_body=body,
                                 headers=headers, timeout=SILENCE_S,
                                 idempotent=repeatable) as stream:
                try:
                    for event in stream.events():
                        end = time.monotonic() + RESTART_S
                        headers["Last-Event-ID"] = event.id
                        if event.event == "exit":
                            return self._ended(json.loads(event.data), kept)
                        data = _output(event.data)
                        kept[event.event].add(data)
                        callback = tell[event.event]
                        if callback:
                            callback(data)
                except TransportError:
                    if not repeatable or time.monotonic() > end:
                        raise
                else:
                    if not repeatable or time.monotonic() > end:
                        raise TransportError("the stream ended before the command did")
            time.sleep(0.05)

    @staticmethod
    def _ended(data: Dict[str, Any], kept: Mapping[str, _Kept]) -> ExecResult:
        if data.get("error"):
            raise error_of(data["error"]["code"], data["error"]["message"])
        result = ExecResult.from_json(data)
        result.stdout, result.stdout_truncated = kept["stdout"].text()
        result.stderr, result.stderr_truncated = kept["stderr"].text()
        return result

    def start(self, sandbox_id: str, command: Command, *, cwd: Optional[str] = None,
              env: Optional[Mapping[str, str]] = None, user: Optional[str] = None,
              stdin: bool = False, pty: bool = False, rows: int = 24, cols: int = 80,
              timeout_s: Optional[float] = None, back_pressure: bool = False,
              execution_mode: Optional[str] = None) -> ProcessInfo:
        body = _command_fields(command, cwd, env, user, execution_mode)
        if pty:
            body.update(pty=True, rows=rows, cols=cols)
        if stdin:
            body["stdin"] = True
        if timeout_s:
            body["timeout_s"] = timeout_s
        if back_pressure:
            body["back_pressure"] = True
        answer = self._http.request(
            "POST", self._box(sandbox_id, "processes"), json_body=body, idempotent=True,
            headers={"Idempotency-Key": uuid.uuid4().hex})
        return ProcessInfo.from_json(answer.json())

    def processes(self, sandbox_id: str) -> List[ProcessInfo]:
        data = self._http.request("GET", self._box(sandbox_id, "processes")).json()
        return [ProcessInfo.from_json(p) for p in data["processes"]]

    def process(self, sandbox_id: str, pid: Union[int, str]) -> ProcessInfo:
        return ProcessInfo.from_json(
            self._http.request("GET", self._process(sandbox_id, pid)).json())

    def signal(self, sandbox_id: str, pid: Union[int, str], signal: Union[int, str]) -> None:
        self._http.request("POST", self._process(sandbox_id, pid, "signal"),
                           json_body={"signal": signal})

    def kill(self, sandbox_id: str, pid: Union[int, str]) -> None:
        # A pid is used again, so only the id of a process can be killed twice.
        self._http.request("DELETE", self._process(sandbox_id, pid),
                           idempotent=isinstance(pid, str) and len(pid) == 32)

    def write_stdin(self, sandbox_id: str, pid: Union[int, str], data: bytes, *,
                    close: bool = False) -> None:
        self._http.request(
            "POST", self._process(sandbox_id, pid, "stdin"), body=data,
            query={"close": "true"} if close else None,
            headers={"Content-Type": "application/octet-stream"})

    def resize(self, sandbox_id: str, pid: Union[int, str], rows: int, cols: int) -> None:
        self._http.request("POST", self._process(sandbox_id, pid, "resize"),
                           json_body={"rows": rows, "cols": cols}, idempotent=True)

    def read_output(self, sandbox_id: str, pid: Union[int, str], *, stream: str = "stdout",
                    offset: int = 0, limit: Optional[int] = None) -> OutputChunk:
        answer = self._http.request(
            "GET", self._process(sandbox_id, pid, "output"),
            query={"stream": stream, "offset": offset, "limit": limit})
        return OutputChunk(
            data=answer.body, next_offset=offset + len(answer.body),
            first_offset=int(answer.headers.get("X-First-Offset") or 0),
            running=answer.headers.get("X-Running") == "true")

    def follow(self, sandbox_id: str, pid: Union[int, str], *,
               offsets: Optional[Tuple[int, int]] = None) -> Iterator[OutputEvent]:
        headers = {"Accept": "text/event-stream"}
        if offsets is not None:
            headers["Last-Event-ID"] = f"{offsets[0]}.{offsets[1]}"
        end = time.monotonic() + RESTART_S
        while True:
            with self._http.open("GET", self._process(sandbox_id, pid, "output"),
                                 query={"follow": "true"}, headers=headers,
                                 timeout=SILENCE_S) as stream:
                try:
                    for event in stream.events():
                        end = time.monotonic() + RESTART_S
                        headers["Last-Event-ID"] = event.id
                        out, err = _offsets(event.id)
                        if event.event == "exit":
                            yield OutputEvent("exit", b"", out, err,
                                              ExecResult.from_json(json.loads(event.data)))
                            return
                        yield OutputEvent(event.event, _output(event.data), out, err)
                except TransportError:
                    if time.monotonic() > end:
                        raise
            if time.monotonic() > end:
                raise TransportError("the stream ended before the process did")
            time.sleep(0.05)

    # ---- code contexts ----

    def _context(self, sandbox_id: str, context_id: str, *more: str) -> str:
        return self._box(sandbox_id, "contexts", _part(context_id), *more)

    def create_context(self, sandbox_id: str, *, language: str = "python",
                       cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
                       name: Optional[str] = None) -> ContextInfo:
        body: Dict[str, Any] = {"language": language, "cwd": cwd, "name": name,
                                "env": dict(env) if env else None}
        answer = self._http.request(
            "POST", self._box(sandbox_id, "contexts"), timeout=CONTEXT_S,
            json_body={k: v for k, v in body.items() if v is not None})
        return ContextInfo.from_json(answer.json())

    def contexts(self, sandbox_id: str) -> List[ContextInfo]:
        data = self._http.request("GET", self._box(sandbox_id, "contexts")).json()
        return [ContextInfo.from_json(c) for c in data["contexts"]]

    def remove_context(self, sandbox_id: str, context_id: str) -> None:
        self._http.request("DELETE", self._context(sandbox_id, context_id))

    def restart_context(self, sandbox_id: str, context_id: str) -> ContextInfo:
        answer = self._http.request("POST", self._context(sandbox_id, context_id, "restart"),
                                    json_body={}, timeout=CONTEXT_S)
        return ContextInfo.from_json(answer.json())

    def fork_context(self, sandbox_id: str, context_id: str, *,
                     force: bool = False) -> ContextInfo:
        answer = self._http.request("POST", self._context(sandbox_id, context_id, "fork"),
                                    json_body={"force": force}, timeout=CONTEXT_S)
        return ContextInfo.from_json(answer.json())

    def undo_context(self, sandbox_id: str, context_id: str) -> ContextInfo:
        answer = self._http.request("POST", self._context(sandbox_id, context_id, "undo"),
                                    json_body={}, timeout=CONTEXT_S)
        return ContextInfo.from_json(answer.json())

    def interrupt_context(self, sandbox_id: str, context_id: str) -> bool:
        answer = self._http.request("POST", self._context(sandbox_id, context_id, "interrupt"),
                                    json_body={}, idempotent=True)
        return bool(answer.json().get("interrupted"))

    def execute(self, sandbox_id: str, context_id: str, code: str, on_event: EventCallback, *,
                env: Optional[Mapping[str, str]] = None, timeout_s: Optional[float] = None,
                keep_before: bool = False) -> None:
        body: Dict[str, Any] = {"code": code, "timeout_s": timeout_s or 0}
        if env:
            body["env"] = dict(env)
        if keep_before:
            body["keep_before"] = True
        # Without a key: then the server interrupts the cell when this connection is closed.
        try:
            found = self._tell_cell("POST", self._context(sandbox_id, context_id, "execute"), body,
                                    {"Accept": "text/event-stream"}, on_event)
        except _CutOff as cut:
            raise (self._why_gone(sandbox_id) or cut.error) from None
        if found is not None:
            self._follow_cell(sandbox_id, context_id, found, on_event)

    def _why_gone(self, sandbox_id: str) -> Optional[PaddockError]:
        """Why the sandbox is gone, which is known when its end is; None when it is there."""
        end = time.monotonic() + RESTART_S
        while True:
            info = self.find(sandbox_id)
            if info.state != "stopping" or time.monotonic() > end:
                return gone_error(info) if info.state in ("gone", "stopping") else None
            time.sleep(0.05)

    def _tell_cell(self, method: str, path: str, body: Optional[Dict[str, Any]],
                   headers: Dict[str, str], on_event: EventCallback) -> Optional[Tuple[str, str]]:
        """Tells the events of one answer. None at the cell's end; if the stream broke off before, the
        cell's id and where to go on."""
        cell, last = "", headers.get("Last-Event-ID", "")
        with self._http.open(method, path, json_body=body, headers=headers,
                             timeout=SILENCE_S) as stream:
            broken = TransportError("the stream ended before the code did")
            try:
                for event in stream.events():
                    data = {"type": event.event, **json.loads(event.data)}
                    last = event.id or last
                    cell = data["id"] if data["type"] == "start" else cell
                    try:
                        on_event(data)
                    except TransportError as error:
                        raise _Raised(error) from None
                    if data["type"] == "end":
                        return None
            except TransportError as error:
                broken = error
            except _Raised as raised:
                raise raised.error from None
        if not cell and method == "POST":
            raise _CutOff(broken)
        return cell, last

    def _follow_cell(self, sandbox_id: str, context_id: str, found: Tuple[str, str],
                     on_event: EventCallback) -> None:
        """Goes on with a cell whose stream broke off: the server was restarted, and the cell runs."""
        cell, last = found
        path = self._context(sandbox_id, context_id, "executions", _part(cell))
        end = time.monotonic() + RESTART_S
        try:
            while True:
                again = self._tell_cell(
                    "GET", path, None, {"Accept": "text/event-stream", "Last-Event-ID": last},
                    on_event)
                if again is None:
                    return
                if again[1] != last:
                    last, end = again[1], time.monotonic() + RESTART_S
                    continue
                gone = self._why_gone(sandbox_id)
                if gone is not None:
                    raise gone
                if time.monotonic() > end:
                    raise TransportError("the stream ended before the code did")
                time.sleep(0.05)
        except BaseException:
            # Whoever only follows interrupts nothing by leaving.
            token = _cancel._token.set(None)
            try:
                self.interrupt_context(sandbox_id, context_id)
            except PaddockError:
                pass  # it is gone already, or its sandbox is
            finally:
                _cancel._token.reset(token)
            raise

    # ---- files ----

    def read_file(self, sandbox_id: str, path: str, *, offset: int = 0,
                  length: Optional[int] = None, user: Optional[str] = None) -> bytes:
        headers = {}
        if length is not None and length <= 0:
            return b""
        if offset or length is not None:
            last = "" if length is None else str(offset + length - 1)
            headers["Range"] = f"bytes={offset}-{last}"
        try:
            return self._http.request("GET", self._files(sandbox_id), headers=headers, timeout=300,
                                      query={"path": path, "user": user}).body
        except InvalidArgumentError as error:
            if error.status == 416:
                return b""
            raise

    def iter_file(self, sandbox_id: str, path: str, *,
                  user: Optional[str] = None) -> Iterator[bytes]:
        stream = self._http.open("GET", self._files(sandbox_id), timeout=300,
                                 query={"path": path, "user": user})
        return stream.chunks()

    def write_file(self, sandbox_id: str, path: str, data: FileData, *,
                   mode: Optional[int] = None, mkdirs: bool = True,
                   user: Optional[str] = None) -> Entry:
        answer = self._http.request(
            "PUT", self._files(sandbox_id), body=data, timeout=300,
            query={"path": path, "mode": _mode(mode), "user": user,
                   "mkdirs": "true" if mkdirs else None},
            headers={"Content-Type": "application/octet-stream"})
        return Entry.from_json(answer.json())

    def list_files(self, sandbox_id: str, path: str = ".", *, depth: int = 1,
                   user: Optional[str] = None) -> List[Entry]:
        query: Dict[str, object] = {"path": path, "depth": depth, "user": user, "limit": 10000}
        entries: List[Entry] = []
        while True:
            page = self._http.request("GET", self._files(sandbox_id, "list"), query=query).json()
            entries += [Entry.from_json(e) for e in page["entries"]]
            if not page["next_cursor"]:
                return entries
            query["cursor"] = page["next_cursor"]

    def stat(self, sandbox_id: str, path: str, *, user: Optional[str] = None) -> Entry:
        return Entry.from_json(self._http.request(
            "GET", self._files(sandbox_id, "stat"), query={"path": path, "user": user}).json())

    def remove(self, sandbox_id: str, path: str, *, recursive: bool = False,
               user: Optional[str] = None) -> None:
        self._http.request("DELETE", self._files(sandbox_id), timeout=300, query={
            "path": path, "recursive": "true" if recursive else None, "user": user})

    def mkdir(self, sandbox_id: str, path: str, *, parents: bool = True,
              mode: Optional[int] = None, user: Optional[str] = None) -> Entry:
        body: Dict[str, object] = {"path": path, "parents": parents}
        if mode is not None:
            body["mode"] = _mode(mode)
        return self._change(sandbox_id, "mkdir", body, user)

    def move(self, sandbox_id: str, source: str, target: str, *, overwrite: bool = False,
             user: Optional[str] = None) -> Entry:
        return self._change(sandbox_id, "move",
                            {"from": source, "to": target, "overwrite": overwrite}, user)

    def copy(self, sandbox_id: str, source: str, target: str, *, recursive: bool = False,
             user: Optional[str] = None) -> Entry:
        return self._change(sandbox_id, "copy",
                            {"from": source, "to": target, "recursive": recursive}, user)

    def chmod(self, sandbox_id: str, path: str, mode: int, *,
              user: Optional[str] = None) -> Entry:
        return self._change(sandbox_id, "chmod", {"path": path, "mode": _mode(mode)}, user)

    def _change(self, sandbox_id: str, verb: str, body: Dict[str, object],
                user: Optional[str]) -> Entry:
        answer = self._http.request("POST", self._files(sandbox_id, verb), json_body=body,
                                    query={"user": user} if user else None, timeout=300)
        return Entry.from_json(answer.json())

    def search(self, sandbox_id: str, pattern: str, path: str = ".", *, mode: str = "literal",
               glob: Optional[str] = None, case_sensitive: bool = True, limit: int = 1000,
               user: Optional[str] = None) -> SearchResult:
        body: Dict[str, object] = {"path": path, "pattern": pattern, "mode": mode,
                                   "case_sensitive": case_sensitive, "limit": limit}
        if glob is not None:
            body["glob"] = glob
        data = self._http.request(
            "POST", self._files(sandbox_id, "search"), json_body=body, timeout=300,
            query={"user": user} if user else None, idempotent=True).json()
        return SearchResult([Match.from_json(m) for m in data["matches"]], data["truncated"])

    def replace(self, sandbox_id: str, pattern: str, replacement: str, path: str = ".", *,
                mode: str = "literal", glob: Optional[str] = None, dry_run: bool = False,
                user: Optional[str] = None) -> List[Replaced]:
        body: Dict[str, object] = {"path": path, "pattern": pattern, "mode": mode,
                                   "replacement": replacement, "dry_run": dry_run}
        if glob is not None:
            body["glob"] = glob
        data = self._http.request(
            "POST", self._files(sandbox_id, "replace"), json_body=body, timeout=300,
            query={"user": user} if user else None, idempotent=dry_run).json()
        return [Replaced.from_json(f) for f in data["files"]]

    def watch(self, sandbox_id: str, path: str = ".", *, recursive: bool = False,
              user: Optional[str] = None) -> Iterator[Dict[str, str]]:
        with self._http.open(
                "GET", self._files(sandbox_id, "watch"), timeout=SILENCE_S,
                headers={"Accept": "text/event-stream"},
                query={"path": path, "recursive": _bool(recursive), "user": user}) as stream:
            for event in stream.events():
                data = json.loads(event.data) if event.data else {}
                if event.event == "error":
                    raise error_of(data.get("code", "internal"), data.get("message", ""))
                yield {"event": event.event, **data}

    # ---- environment, ports ----

    def environment(self, sandbox_id: str) -> Environment:
        return Environment.from_json(self._http.request("GET", self._box(sandbox_id, "env")).json())

    def set_environment(self, sandbox_id: str, env: Optional[Mapping[str, Optional[str]]] = None,
                        cwd: Optional[str] = None) -> Environment:
        body: Dict[str, object] = {}
        if env:
            body["env"] = dict(env)
        if cwd is not None:
            body["cwd"] = cwd
        return Environment.from_json(
            self._http.request("PUT", self._box(sandbox_id, "env"), json_body=body).json())

    def ports(self, sandbox_id: str) -> List[PortInfo]:
        data = self._http.request("GET", self._box(sandbox_id, "ports")).json()
        return [PortInfo.from_json(p) for p in data["ports"]]

    def preview(self, sandbox_id: str, port: int, *, expires_in_s: float = 3600) -> Preview:
        return Preview.from_json(self._http.request(
            "POST", f"{self._box(sandbox_id, 'ports')}/{int(port)}/preview",
            json_body={"expires_in_s": expires_in_s}, idempotent=True).json())

    def host(self, sandbox_id: str, port: int) -> str:
        # The server knows its domain; the link that it makes shows whether it has one.
        link = urlsplit(self.preview(sandbox_id, port, expires_in_s=1).url)
        return link.netloc + link.path.rstrip("/")

    def providers(self) -> List[str]:
        said = self._http.request("GET", "/v1/providers").json()["providers"]
        return [p["name"] for p in sorted(said, key=lambda p: not p["default"])]

    def info(self) -> Dict[str, str]:
        return {"mode": self.mode, "server_url": self._http.url}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._http.close()

    # ---- targets ----

    @staticmethod
    def _box(sandbox_id: str, *more: str) -> str:
        return "/".join(["/v1/sandboxes", _part(sandbox_id), *more])

    @staticmethod
    def _session(user_id: str, thread_id: str) -> str:
        return f"/v1/sessions/{_part(user_id)}/{_part(thread_id)}"

    def _process(self, sandbox_id: str, pid: Union[int, str], *more: str) -> str:
        return self._box(sandbox_id, "processes", _part(pid), *more)

    def _files(self, sandbox_id: str, *more: str) -> str:
        return self._box(sandbox_id, "files", *more)
