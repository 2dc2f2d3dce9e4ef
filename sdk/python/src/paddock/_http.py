"""HTTP/1.1 to one server: connections that are kept, streams both ways, careful repetition.

How this works: connections rest in a list, and a request takes the youngest. One on which something
can be read while it rests was closed by the server and is thrown away, so that a restart of the
server is not noticed by the next request. A request is repeated only when that is harmless: nobody
was connected yet, or the request says that it is `idempotent`. The time in which it is repeated is
long enough for a server that is just being restarted, but only if it was ever reached before.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import socket
import ssl
import threading
import time
from email.message import Message
from io import IOBase
from typing import (
    Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Protocol, Tuple, Union,
    runtime_checkable,
)
from urllib.parse import quote, urlencode, urlsplit

from . import _cancel
from ._backend import FileData
from .errors import InvalidArgumentError, PaddockError, RequestTimeoutError, TransportError, error_of

RESTART_S = 15.0  # how long a server may be away that was there before
IDLE_MAX = 64
BLOCK = 256 * 1024
SMALL = 64 * 1024
LINE_MAX = 64 * 1024 * 1024  # of an event; who sends more is no server of events
_UNSAFE = re.compile("[\\x00-\\x1f\\x7f]")

_BROKEN = (http.client.RemoteDisconnected, http.client.IncompleteRead, BrokenPipeError,
           ConnectionResetError, ConnectionAbortedError, http.client.BadStatusLine)


class Event(NamedTuple):
    """One server-sent event."""

    id: str
    event: str
    data: str


class Response:
    """A whole answer."""

    def __init__(self, status: int, headers: Message, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Dict[str, Any]:
        """The body, which must be an object."""
        data = json.loads(self.body)
        if not isinstance(data, dict):
            raise TransportError("the server answered with JSON that is no object", code="protocol")
        return data


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: Optional[float]) -> None:
        super().__init__("localhost", timeout=timeout, blocksize=BLOCK)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _shut(sock: socket.socket) -> None:
    # close() alone would leave the connection open for as long as a file of it is.
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class Stream:
    """An answer that is read as it comes. Close it, or read it to its end."""

    def __init__(self, client: HttpClient, connection: http.client.HTTPConnection,
                 sock: socket.socket, answer: http.client.HTTPResponse) -> None:
        self._client = client
        self._connection = connection
        self._sock = sock
        self._answer = answer
        self._open = True
        self.status = answer.status
        self.headers = answer.headers

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Breaks it off if it is not at its end."""
        if not self._open:
            return
        self._open = False
        if self._answer.isclosed() and not self._answer.will_close:
            self._client._give_back(self._connection)
            return
        _shut(self._sock)
        self._answer.close()
        self._connection.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with _cancel.ended_by(lambda: _shut(self._sock)):
                yield
        except socket.timeout:
            self.close()
            raise RequestTimeoutError("the server has gone silent") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._client._broken(error) from None
        if _cancel.cancelled():
            self.close()
            raise _cancel.Cancelled("the call was cancelled")

    def read_all(self) -> bytes:
        """The rest of the body."""
        with self._reading():
            data = self._answer.read()
        self.close()
        return data

    def chunks(self) -> Iterator[bytes]:
        """The body in pieces."""
        try:
            while True:
                with self._reading():
                    data = self._answer.read(BLOCK)
                if not data:
                    return
                yield data
        finally:
            self.close()

    def events(self) -> Iterator[Event]:
        """The body as server-sent events. Ends silently when the connection is closed."""
        fields: Dict[str, str] = {}
        try:
            while True:
                with self._reading():
                    line = self._answer.readline(LINE_MAX)
                if not line:
                    return
                if len(line) == LINE_MAX:
                    raise TransportError(f"{self._client.url} sent an event of more than {LINE_MAX} "
                                         "bytes", code="protocol")
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                if text:
                    name, _, value = text.partition(":")
                    value = value[1:] if value.startswith(" ") else value
                    if name == "data" and "data" in fields:
                        value = fields["data"] + "\n" + value
                    if name:
                        fields[name] = value
                elif "data" in fields or "event" in fields:
                    yield Event(fields.get("id", ""), fields.get("event", "message"),
                                fields.get("data", ""))
                    fields = {}
        finally:
            self.close()


class HttpClient:
    """Requests to one server; thread-safe. The URL is http://, https:// or unix:/path."""

    def __init__(self, url: str, headers: Optional[Mapping[str, str]] = None) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https", "unix") or not (parts.netloc or parts.path):
            raise InvalidArgumentError(
                f"server_url: '{url}' is no URL of a server; valid are http://HOST:PORT, "
                "https://HOST:PORT and unix:/PATH", details={"field": "server_url"})
        self._scheme = parts.scheme
        self._host = parts.hostname or ""
        try:
            self._port = parts.port
        except ValueError:
            raise InvalidArgumentError(f"server_url: '{url}' has no valid port",
                                       details={"field": "server_url"}) from None
        self._authority = parts.netloc.rpartition("@")[2] or "localhost"
        self._path = parts.path
        self._prefix = "" if self._scheme == "unix" else parts.path
        self._headers = dict(headers or {})
        self._tls: Optional[ssl.SSLContext] = None
        self._lock = threading.Lock()
        self._idle: List[http.client.HTTPConnection] = []
        self._pid = os.getpid()
        self._reached = False

    # ---- connections ----

    def _new(self, timeout: Optional[float]) -> http.client.HTTPConnection:
        if self._scheme == "unix":
            return _UnixConnection(self._path, timeout)
        if self._scheme == "https":
            with self._lock:
                if self._tls is None:
                    self._tls = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout,
                                               context=self._tls, blocksize=BLOCK)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout, blocksize=BLOCK)

    def _take(self) -> Optional[http.client.HTTPConnection]:
        while True:
            with self._lock:
                if self._pid != os.getpid():
                    # A child of fork must not speak on its parent's connections.
                    self._idle = []
                    self._pid = os.getpid()
                if not self._idle:
                    return None
                connection = self._idle.pop()
            sock = connection.sock
            if sock is not None:
                poll = select.poll()
                poll.register(sock, select.POLLIN)
                if not poll.poll(0):
                    return connection
            connection.close()

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and len(self._idle) < IDLE_MAX \
                    and self._pid == os.getpid():
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes the connections that rest."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _broken(self, error: BaseException) -> PaddockError:
        if _cancel.cancelled():
            return _cancel.Cancelled("the call was cancelled")
        text = str(error) or type(error).__name__
        return TransportError(f"the connection to {self.url} broke off: {text}")

    # ---- requests ----

    def open(self, method: str, path: str, *, query: Optional[Mapping[str, object]] = None,
             json_body: Optional[Mapping[str, object]] = None, body: Optional[FileData] = None,
             headers: Optional[Mapping[str, str]] = None, timeout: Optional[float] = 60,
             idempotent: Optional[bool] = None) -> Stream:
        """Sends a request; the answer is not read yet. Raises for 4xx and 5xx."""
        target = self._prefix + path
        if query:
            target += "?" + urlencode({k: v for k, v in query.items() if v is not None},
                                      quote_via=quote)
        sent = dict(self._headers)
        if json_body is not None:
            body = json.dumps(json_body).encode()
            sent["Content-Type"] = "application/json"
        if isinstance(body, str):
            body = body.encode()
        if isinstance(body, bytearray):
            body = bytes(body)
        sent.update(headers or {})
        body, start = _rewindable(body, sent)
        if idempotent is None:
            idempotent = method in ("GET", "HEAD", "PUT")
        repeatable = idempotent and start is not None
        end = time.monotonic() + RESTART_S
        pause = 0.02
        while True:
            try:
                stream = self._once(method, target, body, sent, timeout)
            except _NotConnected as refused:
                error: PaddockError = refused.error
                if not self._reached:
                    raise error from None
            except _BROKEN as broken:
                error = self._broken(broken)
                if not repeatable:
                    raise error from None
            else:
                if stream.status < 400:
                    return stream
                error = _error_in(stream)
                if error.code != "shutting_down" or start is None:
                    raise error
            if time.monotonic() + pause > end or _cancel.cancelled():
                raise error
            time.sleep(pause)
            pause = min(pause * 2, 0.5)
            if start is not None and body is not None and not isinstance(body, bytes):
                _seek(body, start)

    def _once(self, method: str, target: str, body: Optional[FileData], headers: Mapping[str, str],
              timeout: Optional[float]) -> Stream:
        connection = self._take()
        if connection is None:
            connection = self._new(timeout)
            try:
                connection.connect()
            except socket.timeout:
                raise RequestTimeoutError(f"{self.url} did not answer in {timeout:g} s") from None
            except OSError as error:
                connection.close()
                raise _NotConnected(TransportError(
                    f"cannot connect to {self.url}: {error}")) from None
        sock = connection.sock
        assert isinstance(sock, socket.socket)
        sock.settimeout(timeout)
        try:
            with _cancel.ended_by(lambda: _shut(sock)):
                hung_up = False
                try:
                    self._send(sock, method, target, body, headers)
                except (BrokenPipeError, ConnectionResetError):
                    hung_up = True  # it may have said why before
                answer = http.client.HTTPResponse(sock, method=method)
                answer.begin()
                answer.will_close = answer.will_close or hung_up
        except BaseException as error:
            connection.close()
            if _cancel.cancelled():
                raise _cancel.Cancelled("the call was cancelled") from None
            if isinstance(error, socket.timeout):
                raise RequestTimeoutError(
                    f"{self.url} did not answer {method} {target.split('?')[0]} in "
                    f"{timeout:g} s") from None
            if isinstance(error, _BROKEN):
                raise
            if isinstance(error, (OSError, http.client.HTTPException)):
                raise self._broken(error) from None
            raise
        self._reached = True
        return Stream(self, connection, sock, answer)

    def _send(self, sock: socket.socket, method: str, target: str, body: Optional[FileData],
              headers: Mapping[str, str]) -> None:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        whole = body if isinstance(body, bytes) else b"" if body is None else None
        if whole is None and "Content-Length" not in headers:
            lines.append("Transfer-Encoding: chunked")
        elif whole or method in ("POST", "PUT"):
            if whole is not None:
                lines.append(f"Content-Length: {len(whole)}")
        head = "\r\n".join(lines)
        if _UNSAFE.search(head.replace("\r\n", "")) or not head.isascii():
            raise InvalidArgumentError("the key or the URL has a character that cannot be sent")
        start = head.encode() + b"\r\n\r\n"
        if whole is not None and len(whole) <= SMALL:
            # At once: head and body apart would wake the server twice.
            sock.sendall(start + whole)
            return
        sock.sendall(start)
        if whole is not None:
            sock.sendall(whole)
        elif body is not None and "Content-Length" in headers:
            left = int(headers["Content-Length"])
            for piece in _pieces(body):
                # Of a file that grows meanwhile, what it was at first.
                sock.sendall(piece[:left])
                left -= len(piece[:left])
            if left:
                raise InvalidArgumentError(f"the file became {left} bytes shorter while it was sent")
        elif body is not None:
            for piece in _pieces(body):
                sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            sock.sendall(b"0\r\n\r\n")

    def request(self, method: str, path: str, *, query: Optional[Mapping[str, object]] = None,
                json_body: Optional[Mapping[str, object]] = None, body: Optional[FileData] = None,
                headers: Optional[Mapping[str, str]] = None, timeout: Optional[float] = 60,
                idempotent: Optional[bool] = None) -> Response:
        """A request and its whole answer. Raises for 4xx and 5xx."""
        repeat = idempotent if idempotent is not None else method in ("GET", "HEAD")
        for last in (False, True):
            stream = self.open(method, path, query=query, json_body=json_body, body=body,
                               headers=headers, timeout=timeout, idempotent=idempotent)
            try:
                return Response(stream.status, stream.headers, stream.read_all())
            except TransportError:
                if last or not repeat:
                    raise
        raise AssertionError("not reached")


def _pieces(body: FileData) -> Iterator[bytes]:
    if isinstance(body, _HasRead):
        while True:
            data = body.read(BLOCK)
            if not data:
                return
            if isinstance(data, str):
                raise InvalidArgumentError("the file is open as text; open it with mode 'rb'")
            yield data
    else:
        for piece in body:
            if not isinstance(piece, (bytes, bytearray)):
                raise InvalidArgumentError("the data is neither text, bytes, a file nor pieces of "
                                           "bytes")
            if piece:
                yield bytes(piece)


@runtime_checkable
class _HasRead(Protocol):
    def read(self, size: int) -> Union[bytes, str]: ...


def _seek(body: FileData, start: int) -> None:
    if isinstance(body, _HasSeek):
        body.seek(start)


class _NotConnected(Exception):
    def __init__(self, error: PaddockError) -> None:
        super().__init__(str(error))
        self.error = error


def _rewindable(body: Optional[FileData],
                headers: Dict[str, str]) -> Tuple[Optional[FileData], Optional[int]]:
    """The body with its length in the headers if that is known, and where it begins if it can be
    sent again."""
    if body is None or isinstance(body, bytes):
        return body, 0
    if not isinstance(body, (IOBase, _HasSeek)):
        return body, None
    try:
        start = body.tell()
        end = body.seek(0, os.SEEK_END)
        body.seek(start)
    except (OSError, ValueError):
        return body, None
    headers["Content-Length"] = str(end - start)
    return body, start


@runtime_checkable
class _HasSeek(Protocol):
    def tell(self) -> int: ...

    def seek(self, offset: int, whence: int = 0) -> int: ...


def _error_in(stream: Stream) -> PaddockError:
    request_id = stream.headers.get("X-Request-Id")
    after = stream.headers.get("Retry-After")
    retry_after = float(after) if after and after.isdigit() else None
    body = stream.read_all()
    try:
        found: Union[Dict[str, Any], Any] = json.loads(body)["error"]
        code, message, details = found["code"], found["message"], found.get("details") or {}
    except (ValueError, KeyError, TypeError):
        code = {401: "unauthenticated", 404: "not_found", 502: "bad_gateway"}.get(
            stream.status, "internal")
        text = body[:300].decode("utf-8", "replace").strip()
        message, details = f"HTTP status {stream.status}{': ' + text if text else ''}", {}
    return error_of(code, message, details=details, status=stream.status, retry_after=retry_after,
                    request_id=request_id)
