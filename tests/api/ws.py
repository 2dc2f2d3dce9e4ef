"""A raw HTTP connection and a WebSocket client that can also do what it must not."""

import base64
import hashlib
import json
import os
import socket
import struct
import time

from paddock_testing import run as paddock

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def accept_of(key):
    return base64.b64encode(hashlib.sha1(key.encode() + GUID).digest()).decode()


class Raw:
    """Bytes to the server and back; `until` and `head` wait."""

    def __init__(self, api, timeout=15):
        self.api = api
        self.sock = socket.create_connection((api.host, api.port), timeout=paddock.seconds(timeout))
        self.data = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode())

    def request(self, method, target, headers=(), body=b"", host=None, key=True):
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host or f'{self.api.host}:{self.api.port}'}"]
        if key:
            lines.append(f"X-API-Key: {self.api.key}")
        lines += [f"{name}: {value}" for name, value in headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def more(self):
        piece = self.sock.recv(65536)
        self.data += piece
        return bool(piece)

    def until(self, mark):
        while mark not in self.data:
            if not self.more():
                raise EOFError(f"{mark!r} did not come: {self.data[:300]!r}")
        at = self.data.find(mark)
        before = bytes(self.data[:at])
        del self.data[:at + len(mark)]
        return before

    def exactly(self, n):
        while len(self.data) < n:
            if not self.more():
                raise EOFError(f"{n} bytes did not come")
        piece = bytes(self.data[:n])
        del self.data[:n]
        return piece

    def rest(self):
        while self.more():
            pass
        return self.exactly(len(self.data))

    def head(self):
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]
        return int(lines[0].split()[1]), headers

    def answer(self):
        """Status, headers (a list of pairs) and the whole body."""
        status, headers = self.head()
        low = {name.lower(): value for name, value in headers}
        if "chunked" in low.get("transfer-encoding", ""):
            body = b""
            while size := int(self.until(b"\r\n"), 16):
                body += self.exactly(size)
                assert self.exactly(2) == b"\r\n"
            self.until(b"\r\n")
        elif "content-length" in low:
            body = self.exactly(int(low["content-length"]))
        else:
            body = b""
        return status, headers, body


class Closed(Exception):
    def __init__(self, code, reason=""):
        super().__init__(code, reason)
        self.code = code


class WebSocket:
    def __init__(self, api, target, headers=(), host=None, key=True, timeout=15):
        self.raw = Raw(api, timeout)
        self.key = base64.b64encode(os.urandom(16)).decode()
        self.raw.request("GET", target, [("Connection", "Upgrade"), ("Upgrade", "websocket"),
                                         ("Sec-WebSocket-Version", "13"),
                                         ("Sec-WebSocket-Key", self.key), *headers],
                         host=host, key=key)
        self.status, self.headers = self.raw.head()
        self.open = self.status == 101
        if self.open:
            low = {name.lower(): value for name, value in self.headers}
            assert low["sec-websocket-accept"] == accept_of(self.key)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.raw.sock.close()

    def error(self):
        """The body of an answer that is no 101."""
        low = {name.lower(): value for name, value in self.headers}
        return json.loads(self.raw.exactly(int(low["content-length"])))["error"]

    def frame(self, opcode, data=b"", final=True, masked=True, reserved=0):
        head = bytes([(0x80 if final else 0) | reserved << 4 | opcode])
        bit = 0x80 if masked else 0
        if len(data) < 126:
            head += bytes([bit | len(data)])
        elif len(data) < 65536:
            head += bytes([bit | 126]) + struct.pack(">H", len(data))
        else:
            head += bytes([bit | 127]) + struct.pack(">Q", len(data))
        if not masked:
            return head + data
        mask = os.urandom(4)
        long = (mask * (len(data) // 4 + 1))[:len(data)]
        mixed = (int.from_bytes(data, "big") ^ int.from_bytes(long, "big")).to_bytes(len(data), "big")
        return head + mask + mixed

    def send(self, data):
        if isinstance(data, dict):
            data = json.dumps(data)
        if isinstance(data, str):
            self.raw.send(self.frame(TEXT, data.encode()))
        else:
            self.raw.send(self.frame(BINARY, data))

    def next(self):
        """The next frame, whatever it is: (opcode, data)."""
        first, second = self.raw.exactly(2)
        assert first & 0x70 == 0 and second & 0x80 == 0
        size = second & 0x7F
        if size == 126:
            size = struct.unpack(">H", self.raw.exactly(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self.raw.exactly(8))[0]
        data = self.raw.exactly(size)
        assert first & 0x80, "the server does not fragment"
        return first & 0x0F, data

    def message(self):
        """The next message: bytes, or what a text holds. Pings are answered."""
        while True:
            opcode, data = self.next()
            if opcode == PING:
                self.raw.send(self.frame(PONG, data))
            elif opcode == TEXT:
                return json.loads(data)
            elif opcode == BINARY:
                return data
            elif opcode == CLOSE:
                raise Closed(struct.unpack(">H", data[:2])[0] if data else 1005,
                             data[2:].decode())

    def collect(self, until=None, seconds=15):
        """Reads until the exit message, or until `until` is in the output: streams and the exit."""
        streams, exit_message = {1: b"", 2: b""}, None
        end = time.monotonic() + paddock.seconds(seconds)
        while time.monotonic() < end:
            if until and until in streams[1] + streams[2]:
                return streams, None
            message = self.message()
            if isinstance(message, bytes):
                streams[message[0]] += message[1:]
            elif message["type"] == "exit":
                return streams, message
            else:
                raise AssertionError(message)
        raise AssertionError(f"{until!r} did not come: {streams}")

    def closed(self):
        """The code that the server closes with, after whatever else it has to say."""
        try:
            while True:
                self.message()
        except Closed as e:
            return e.code
