"""Runs in a sandbox: a web application on port 8000, and on 8001 a server that says word for word
what it is told to, HTTP or not."""

import base64
import hashlib
import http.server
import json
import os
import socket
import socketserver
import struct
import threading
import time
from urllib.parse import parse_qs, urlsplit

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def pieces(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            left = int(self.headers.get("Content-Length", 0))
            while left:
                piece = self.rfile.read(min(left, 65536))
                left -= len(piece)
                yield piece

    def answer(self, status, body, headers=(), kind="application/json"):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def begin_chunks(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def go(self):
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        what = getattr(self, "do_" + url.path.strip("/").replace("-", "_"), None)
        if what:
            return what(query)
        digest, size = hashlib.sha256(), 0
        for piece in self.pieces():
            digest.update(piece)
            size += len(piece)
        self.answer(200, json.dumps({
            "method": self.command, "target": self.path, "headers": list(self.headers.items()),
            "size": size, "sha256": digest.hexdigest()}).encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = go

    def do_big(self, query):
        left = int(query["n"][0])
        self.send_response(200)
        if "eof" not in query:
            self.send_header("Content-Length", str(left))
        self.end_headers()
        while left:
            piece = b"0123456789abcdef" * 4096
            piece = piece[:left]
            self.wfile.write(piece)
            left -= len(piece)
        self.close_connection = True

    def do_events(self, query):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for i in range(3):
            self.wfile.write(b"data: %d\n\n" % i)
            self.wfile.flush()
            while "wait" in query and not os.path.exists(f"{query['wait'][0]}{i}"):
                time.sleep(0.02)
            if "wait" not in query:
                time.sleep(0.5)
        self.close_connection = True

    def do_duplex(self, query):
        """Answers every piece as it comes."""
        self.begin_chunks("text/plain")
        for piece in self.pieces():
            self.chunk(piece.upper())
        self.wfile.write(b"0\r\n\r\n")

    def do_refuse(self, query):
        self.answer(413, b"no", kind="text/plain")
        self.close_connection = True

    def do_headers(self, query):
        self.answer(200, b"", [h.split(":", 1) for h in query["h"]], kind="text/html")

    def do_status(self, query):
        self.answer(int(query["s"][0]), b"", [("Location", query.get("to", ["/"])[0])])

    def do_ws(self, query):
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                         b"Connection: Upgrade\r\nSec-WebSocket-Protocol: echo\r\n"
                         b"Sec-WebSocket-Accept: "
                         + base64.b64encode(hashlib.sha1(key + GUID).digest()) + b"\r\n\r\n")
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            size = head[1] & 0x7F
            if size == 126:
                size = struct.unpack(">H", self.rfile.read(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.rfile.read(8))[0]
            mask = self.rfile.read(4)
            data = self.rfile.read(size)
            long = (mask * (size // 4 + 1))[:size]
            data = (int.from_bytes(data, "big") ^ int.from_bytes(long, "big")).to_bytes(size, "big")
            out = bytes([head[0]])
            out += bytes([size]) if size < 126 else (
                b"\x7e" + struct.pack(">H", size) if size < 65536 else b"\x7f" + struct.pack(">Q", size))
            self.wfile.write(out + data)
            self.wfile.flush()
            if head[0] & 15 == 8:
                return


def parrot(conn):
    """The target is base64 of what to say, and how: /BASE64?then=close|stay|flood."""
    with conn:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = conn.recv(65536)
            if not piece:
                return
            head += piece
        url = urlsplit(head.split()[1].decode())
        then = parse_qs(url.query).get("then", ["close"])[0]
        try:
            conn.sendall(base64.urlsafe_b64decode(url.path[1:]))
            while then == "flood":
                conn.sendall(b"X-Flood: " + b"f" * 1000 + b"\r\n")
            while then == "interim":
                conn.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
            if then == "stay":
                time.sleep(60)
        except OSError:
            pass


def serve_parrot():
    listener = socket.create_server(("127.0.0.1", 8001))
    while True:
        threading.Thread(target=parrot, args=(listener.accept()[0],), daemon=True).start()


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    threading.Thread(target=serve_parrot, daemon=True).start()
    server = Server(("0.0.0.0", 8000), App)
    print("ready", flush=True)
    server.serve_forever()
