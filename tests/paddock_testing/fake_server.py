"""A server that says what a test wants: for what a real one never says to its clients."""

import base64
import hashlib
import json
import re
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_call(self):
        path, _, self.query = self.path.partition("?")
        self.body = self.read_body()
        server = self.server.owner
        server.calls.append((self.command, self.path, dict(self.headers), self.body))
        for method, pattern, answer in server.routes:
            if method == self.command and re.fullmatch(pattern, path):
                answer(self)
                return
        self.answer(404, {"error": {"code": "not_found", "message": "no such thing", "details": {}}})

    do_GET = do_POST = do_PUT = do_DELETE = handle_one_call

    def read_body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, body=None, headers=(), kind="application/json"):
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self, kind, headers=()):
        """An answer in chunks: chunk(), then end_chunks() or not."""
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end_chunks(self):
        self.wfile.write(b"0\r\n\r\n")

    def event(self, kind, data, number="0.0"):
        text = f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
        self.chunk(text.encode())

    def upgrade(self):
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.close_connection = True

    def send_frame(self, opcode, data):
        head = bytes([0x80 | opcode])
        head += bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack(">H", len(data))
        self.wfile.write(head + data)
        self.wfile.flush()

    def read_frame(self):
        """(opcode, payload) of a frame of a client, or None at the end."""
        head = self.rfile.read(2)
        if len(head) < 2:
            return None
        size = head[1] & 0x7F
        if size == 126:
            size = struct.unpack(">H", self.rfile.read(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self.rfile.read(8))[0]
        assert head[1] & 0x80, "a client's frame is masked"
        mask = self.rfile.read(4)
        data = self.rfile.read(size)
        return head[0] & 15, bytes(b ^ mask[i % 4] for i, b in enumerate(data))

    def log_message(self, *arguments):
        pass


class FakeServer:
    """Answers with what `on` was given; `calls` has (method, target, headers, body) of each."""

    def __init__(self, port=0):
        self.routes, self.calls = [], []
        self.http = ThreadingHTTPServer(("127.0.0.1", port), Call)
        self.http.daemon_threads = True
        self.http.owner = self
        self.url = "http://127.0.0.1:%d" % self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *reason):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def on(self, method, pattern, answer):
        """`answer`: a function of the call, or (status, body)."""
        if not callable(answer):
            status, body = answer
            self.routes.insert(0, (method, pattern, lambda c: c.answer(status, body)))
        else:
            self.routes.insert(0, (method, pattern, answer))
