"""Connect RPC as E2B's clients speak it, from bytes: envelopes, events, tokens."""

import base64
import hmac
import http.client
import json
import os
import socket
import sqlite3
import struct

from paddock_testing.server import Response


def envelope(message, flags=0):
    """One message of a stream; bytes are put in as they are."""
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(data)) + data


def b64(data):
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def read_exactly(source, count):
    """Fewer bytes only at the end of the body."""
    data = b""
    while len(data) < count:
        more = source.read(count - len(data))
        if not more:
            break
        data += more
    return data


def token_of(server, sandbox, kind="envd"):
    """What only the server can make: from the secret in its database."""
    path = os.path.join(server.state_dir, "server", "paddock.db")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        secret = db.execute("SELECT data FROM named_values WHERE name='access_secret'"
                            ).fetchone()[0]
    mac = hmac.new(bytes(secret), f"{kind}:{sandbox}".encode(), "sha256").hexdigest()
    return f"{sandbox}-{mac}"


class Broken(Exception):
    """The stream broke off without its last envelope."""


class Stream:
    """A stream of events, read as they come. `error` is what its last envelope said."""

    def __init__(self, connection, answer):
        self.connection = connection
        self.answer = answer
        self.sock = connection.sock
        self.last = None

    def message(self):
        """The next message, or None behind the last one."""
        if self.last is not None:
            return None
        try:
            head = read_exactly(self.answer, 5)
            if len(head) < 5:
                raise Broken(head)
            flags, length = struct.unpack(">BI", head)
            data = read_exactly(self.answer, length)
        except (http.client.HTTPException, ConnectionError) as error:
            raise Broken(repr(error)) from error
        if len(data) < length:
            raise Broken(data)
        assert flags in (0, 2), flags
        if not flags:
            return json.loads(data)
        self.last = json.loads(data)
        assert self.answer.read() == b"", "something is behind the last envelope"
        return None

    def event(self):
        """(kind, value) of the next event that is no keepalive, or None."""
        while (message := self.message()) is not None:
            assert set(message) == {"event"}, message
            (kind, value), = message["event"].items()
            if kind != "keepalive":
                return kind, value
        return None

    @property
    def error(self):
        return (self.last or {}).get("error")

    def start(self):
        kind, value = self.event()
        assert kind == "start" and set(value) == {"pid"}, (kind, value)
        return value["pid"]

    def until(self, text, kind="stdout"):
        """Reads until this was written; gives all that came."""
        seen = b""
        while text not in seen:
            event = self.event()
            assert event, (seen[-300:], self.last)
            assert event[0] == "data", (event, seen[-300:])
            seen += base64.b64decode(event[1].get(kind, ""), validate=True)
        return seen

    def rest(self):
        """Everything up to the end: {"stdout", "stderr", "pty", "end", "error", "largest"}."""
        seen = {"stdout": [], "stderr": [], "pty": []}
        end, largest = None, 0
        while (event := self.event()) is not None:
            assert end is None, f"{event} came behind the end"
            if event[0] == "end":
                end = event[1]
                continue
            assert event[0] == "data" and len(event[1]) == 1, event
            (kind, text), = event[1].items()
            seen[kind].append(base64.b64decode(text, validate=True))
            largest = max(largest, len(seen[kind][-1]))
        return {**{kind: b"".join(parts) for kind, parts in seen.items()}, "end": end,
                "largest": largest, "error": self.error}

    def close(self):
        self.answer.close()
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Rpc:
    """envd of one sandbox. `user` becomes Basic."""

    def __init__(self, client, sandbox, token, user=None):
        self.client = client
        self.sandbox = sandbox
        self.token = token
        self.user = user

    def headers(self, kind, more=None):
        found = {"E2b-Sandbox-Id": self.sandbox, "E2b-Sandbox-Port": "49983",
                 "Content-Type": kind, "Connect-Protocol-Version": "1"}
        if self.token:
            found["X-Access-Token"] = self.token
        if self.user:
            found["Authorization"] = "Basic " + b64(self.user + ":")
        return {**found, **(more or {})}

    def _open(self, path, body, headers):
        connection = http.client.HTTPConnection(self.client.host, self.client.port,
                                                timeout=self.client.timeout)
        try:
            connection.request("POST", path, body=body, headers=headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def unary(self, method, message, headers=None, service="process.Process"):
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        connection, answer = self._open(f"/{service}/{method}", body,
                                        self.headers("application/json", headers))
        try:
            return Response(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def call(self, method, message, **more):
        """A unary call that must work."""
        answer = self.unary(method, message, **more)
        assert answer.status == 200, answer
        assert answer.headers["Content-Type"] == "application/json", answer
        return answer.json()

    def fails(self, method, message, status, code, says="", **more):
        answer = self.unary(method, message, **more)
        assert answer.status == status, answer
        body = answer.json()
        assert set(body) == {"code", "message"} and body["code"] == code, body
        assert says in body["message"], body
        return body

    def stream(self, method, message, headers=None, raw=False, service="process.Process"):
        body = message if raw else envelope(message)
        connection, answer = self._open(f"/{service}/{method}", body,
                                        self.headers("application/connect+json", headers))
        assert answer.status == 200, (answer.status, answer.read())
        assert answer.getheader("Content-Type") == "application/connect+json"
        return Stream(connection, answer)

    # ---- process.Process ----

    def start(self, line=None, headers=None, raw=False, stdin=False, timeout_ms=None, **more):
        """A line of bash as the SDKs send it, or the members of a request."""
        body = dict(more)
        if line is not None:
            process = body.setdefault("process", {})
            process.update(cmd="/bin/bash", args=["-l", "-c", line])
        if stdin is not None:
            body["stdin"] = stdin
        headers = dict(headers or {})
        if timeout_ms:
            headers["Connect-Timeout-Ms"] = str(timeout_ms)
        return self.stream("Start", body, headers, raw)

    def run(self, line=None, **more):
        """To its end: what Stream.rest gives, and the pid."""
        with self.start(line, **more) as stream:
            pid = stream.start()
            return {"pid": pid, **stream.rest()}

    def out(self, line, **more):
        done = self.run(line, **more)
        assert done["end"] == {"exited": True, "status": "exit status 0"}, done
        return done["stdout"].decode()

    def refused(self, line=None, **more):
        """The error of a Start that did not come to a first event."""
        with self.start(line, **more) as stream:
            assert stream.message() is None
            return stream.error

    def connect(self, headers=None, **selector):
        return self.stream("Connect", {"process": selector}, headers)

    def list(self):
        return self.call("List", {}).get("processes", [])

    def pids(self):
        return [p["pid"] for p in self.list()]

    def signal(self, name="SIGKILL", **selector):
        return self.unary("SendSignal", {"process": selector, "signal": f"SIGNAL_{name}"})
