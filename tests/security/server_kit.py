"""What the attacks on the server share: raw bytes, two tenants, and the state of the host."""

import contextlib
import re
import socket
import threading
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Response, Server, check_error


@pytest.fixture(scope="module")
def server():
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as s:
        yield s
        clean_log(s)


@pytest.fixture(scope="module")
def alice(server):
    """A client of one tenant, who has a sandbox: alice.sandbox."""
    yield from tenant(server, "alice")


@pytest.fixture(scope="module")
def bob(server):
    yield from tenant(server, "bob")


def tenant(server, name):
    client = server.client(server.make_key(name))
    client.sandbox = create(client)
    yield client
    client.delete(f"/v1/sandboxes/{client.sandbox}")
    client.close()


def create(client, **body):
    made = client.post("/v1/sandboxes", json=body)
    assert made.status == 201, made
    return made.json()["id"]


def execute(client, command, sandbox=None, **more):
    answer = client.post(f"/v1/sandboxes/{sandbox or client.sandbox}/exec",
                         json={"command": command, **more})
    assert answer.status == 200, answer
    return answer.json()


def out(client, command, **more):
    result = execute(client, command, **more)
    assert result["exit_code"] == 0, result
    return result["stdout"]


def clean_log(server):
    raw = [c for c in server.log() if ord(c) < 32 and c != "\n" or ord(c) == 127]
    assert not raw, f"raw control bytes in the log: {raw[:10]}"


def works(client, limit=10):
    """A command of this tenant still runs, and soon."""
    began = time.monotonic()
    assert out(client, "echo $((6*7))").strip() == "42"
    took = time.monotonic() - began
    assert took < paddock.seconds(limit), f"it took {took:.1f} s"
    return took


# ---- bytes ----


class Raw:
    """A connection on which anything can be sent."""

    def __init__(self, client, timeout=20):
        self.client = client
        self.sock = socket.create_connection((client.host, client.port),
                                             timeout=paddock.seconds(timeout))
        self.data = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))

    def try_send(self, data):
        """The server may have closed it already."""
        with contextlib.suppress(OSError):
            self.send(data)

    def head(self, method="GET", target="/healthz", *lines, key=True, host=None, end=True):
        host = host or f"{self.client.host}:{self.client.port}"
        given = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
        if key:
            given.append(f"X-API-Key: {self.client.key}")
        self.send("\r\n".join([*given, *lines]) + "\r\n" + ("\r\n" if end else ""))

    def _more(self):
        piece = self.sock.recv(65536)
        self.data += piece
        return piece

    def answer(self, whole=True, head_only=False):
        """The next answer; not `whole`: an event stream is only begun, an error is read."""
        while b"\r\n\r\n" not in self.data:
            if not self._more():
                raise EOFError(f"no answer: {self.data[:200]!r}")
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = [tuple(p.strip() for p in line.split(":", 1)) for line in lines[1:]]
        low = {name.lower(): value for name, value in headers}
        status = int(lines[0].split()[1])
        body = b""
        if head_only or (not whole and status < 400):
            return Response(status, headers, body)
        if "chunked" in low.get("transfer-encoding", ""):
            while True:
                size, _ = self._line()
                size = int(size, 16)
                body += self._exactly(size)
                assert self._exactly(2) == b"\r\n"
                if not size:
                    break
        elif "content-length" in low:
            body = self._exactly(int(low["content-length"]))
        return Response(status, headers, body)

    def _line(self):
        while b"\r\n" not in self.data:
            if not self._more():
                raise EOFError(f"cut: {self.data[:100]!r}")
        line, _, self.data = self.data.partition(b"\r\n")
        return line, None

    def _exactly(self, n):
        while len(self.data) < n:
            if not self._more():
                raise EOFError(f"{n} bytes did not come")
        piece, self.data = self.data[:n], self.data[n:]
        return piece

    def answers(self, least=None):
        """Every answer until the server closes the connection, and whether it did. Where it may stay
        open, `least` says how many answers there are in any case: others come within a second."""
        found = []
        while True:
            may_be_all = least is not None and len(found) >= least
            self.sock.settimeout(paddock.span(1) if may_be_all else paddock.seconds(20))
            try:
                found.append(self.answer())
            except EOFError:
                assert not self.data, f"a torn answer: {self.data[:200]!r}"
                return found, True
            except ConnectionResetError:
                return found, True
            except TimeoutError:
                return found, False


def ask(client, data, least=None):
    """All answers to these bytes, and whether the connection was closed."""
    with Raw(client) as raw:
        raw.try_send(data)
        return raw.answers(least)


def check_no_leak(response):
    """An error tells nothing about the machine."""
    text = response.text
    # Addresses, errno names, source files, directories of the host.
    assert not re.search(r"0x[0-9a-f]{8,}|\bE[A-Z]{3,}\b|errno|\.c:\d|/var/|/tmp/|/run/|/proc/", text), \
        response
    assert not re.search(r"e2b_[0-9a-f]{40}", text), response


def refused_once(found, closed, *statuses):
    """Exactly one answer, an error in the API's form, and the end of the connection."""
    assert len(found) == 1, f"{len(found)} answers: {found}"
    assert found[0].status in statuses, found[0]
    assert closed, f"still open after {found[0]}"
    check_error(found[0])
    check_no_leak(found[0])


class Many:
    """Connections that are kept open together."""

    def __init__(self):
        self.open = []

    def add(self, raw):
        self.open.append(raw)
        return raw

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for raw in self.open:
            with contextlib.suppress(OSError):
                raw.sock.close()


def in_background(count, call):
    """Threads that run `call(number)`; what it raises is kept in the returned list."""
    errors = []

    def work(number):
        try:
            call(number)
        except Exception as e:  # pylint: disable=broad-except
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads, errors
