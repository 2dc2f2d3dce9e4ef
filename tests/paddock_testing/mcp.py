"""The Model Context Protocol as it is on the wire: over HTTP, and on the standard input and output
of `paddock mcp`. Nothing is checked here but the form of what comes back."""

import contextlib
import http.client
import json
import os
import queue
import subprocess
import threading

from . import run as paddock

VERSION = "2025-11-25"
BOTH = "application/json, text/event-stream"


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def events(self):
        """The messages of a stream; a plain answer is one message."""
        if self.headers.get("content-type") != "text/event-stream":
            return [json.loads(self.body)]
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = [l for l in block.split("\n") if l and not l.startswith(":")]
            if lines:
                assert lines[0] == "event: message" and lines[1].startswith("data: "), block
                assert len(lines) == 2, block
                found.append(json.loads(lines[1][6:]))
        return found

    @property
    def message(self):
        """The last one: the answer to the request."""
        return self.events[-1]

    @property
    def error(self):
        return self.message["error"]

    @property
    def result(self):
        assert "result" in self.message, self
        return self.message["result"]

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:2000]!r}>"


def result_of(answer):
    """The tool's structured result; it must not be an error."""
    assert answer.status == 200, answer
    assert not answer.result["isError"], answer
    return answer.result["structuredContent"]


class Http:
    """A session over HTTP. A call may come from any thread: each has a connection of its own."""

    def __init__(self, server, key=None, query="", session=None):
        self.server = server
        self.key = key or server.key
        self.path = "/mcp" + query
        self.session = session
        self.number = 0

    def send(self, method, body=None, headers=None, key=None):
        """Any request. A header that is None is left out."""
        connection = http.client.HTTPConnection(self.server.host, self.server.port,
                                                timeout=paddock.seconds(90))
        sent = {"Authorization": f"Bearer {key or self.key}", "Accept": BOTH,
                "Content-Type": "application/json", "MCP-Protocol-Version": VERSION,
                "Mcp-Session-Id": self.session, **(headers or {})}
        try:
            connection.request(method, self.path, body=body,
                               headers={n: v for n, v in sent.items() if v is not None})
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def post(self, message, **more):
        data = message if isinstance(message, (bytes, str)) else json.dumps(message)
        return self.send("POST", data, **more)

    def request(self, method, params=None, id=None, **more):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number if id is None else id, "method": method}
        if params is not None:
            message["params"] = params
        return self.post(message, **more)

    def notify(self, method, params=None):
        answer = self.post({"jsonrpc": "2.0", "method": method, "params": params or {}})
        assert answer.status == 202 and answer.body == b"", answer
        return answer

    def start(self):
        answer = self.request("initialize", initialize())
        assert answer.status == 200, answer
        self.session = answer.headers.get("mcp-session-id")
        self.notify("notifications/initialized")
        return self

    def call(self, tool, token=None, id=None, **arguments):
        params = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return self.request("tools/call", params, id=id)

    def end(self):
        return self.send("DELETE", headers={"Content-Type": None})

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.end()


def initialize(version=VERSION):
    return {"protocolVersion": version, "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}}


class Stdio:
    """A `paddock mcp` and what it prints, line by line."""

    def __init__(self, *words, env=None):
        self.process = subprocess.Popen(
            [paddock.PADDOCK, "mcp", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=paddock.clean_environment(env or {}),
            start_new_session=True)
        self.lines = queue.Queue()
        self.errors = b""
        self.readers = [threading.Thread(target=self._read, daemon=True),
                        threading.Thread(target=self._read_errors, daemon=True)]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            assert line.endswith(b"\n"), line
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors += line

    def send(self, message, end=b"\n"):
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(data + end)
        self.process.stdin.flush()

    def request(self, method, params=None, id=1):
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})

    def call(self, tool, id=1, **arguments):
        self.request("tools/call", {"name": tool, "arguments": arguments}, id)

    def next(self, limit=30):
        return self.lines.get(timeout=paddock.seconds(limit))

    def answer(self, id=1, limit=30):
        """The answer to that request; others are thrown away."""
        while (message := self.next(limit)) is not None:
            if message.get("id") == id and ("result" in message or "error" in message):
                return message
        raise AssertionError(f"no answer to {id}: {self.errors!r}")

    def close(self):
        """The end of its input; gives the status."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        status = self.process.wait(paddock.seconds(30))
        for reader in self.readers:
            reader.join(paddock.seconds(10))
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(paddock.seconds(20))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def own_servers():
    """Directories of servers that `paddock mcp` has started for itself."""
    return {name for name in os.listdir("/tmp") if name.startswith("paddock-mcp-")}
