"""Ways to a server that a test can break: all connections cut at once, at any byte, every byte later, nothing carried any
more, or the answers to some requests lost."""

import contextlib
import queue
import random
import re
import select
import socket
import ssl
import threading
import time


class Cutter:
    """A way to a port of this machine that copies bytes, whatever they are, until it is cut. `delay` is how many seconds
    later they come, in each direction; it may be changed at any time, and holds for what is read from then on. A way that
    is `blocked` takes connections and carries nothing: who is behind it cannot be reached, and nobody is told so."""

    def __init__(self, port, delay=0):
        self.port, self.lock, self.stopped = port, threading.Lock(), False
        self.pairs = {}  # the directions of each connection that are left
        self.delay, self.passes = delay, threading.Event()
        self.passes.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                if self.stopped:
                    return
                continue
            for end in (near, far):  # what is late is so by `delay` alone
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.pairs[near, far] = 2
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=(a, b, (near, far)), daemon=True).start()

    def copy(self, a, b, pair):
        """Reads here and writes in a thread of its own, so that what is on its way does not wait for what was before it."""
        way = queue.Queue(256)
        threading.Thread(target=self.carry, args=(way, a, b, pair), daemon=True).start()
        with contextlib.suppress(OSError):
            while piece := a.recv(1 + random.randrange(65536)):
                way.put((time.monotonic() + self.delay, piece))
        way.put((0, b""))

    def carry(self, way, a, b, pair):
        piece = True
        while piece:
            due, piece = way.get()
            time.sleep(max(0, due - time.monotonic()))
            self.passes.wait()
            with contextlib.suppress(OSError):
                b.sendall(piece)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self.lock:
            if pair not in self.pairs:
                return  # it was cut
            self.pairs[pair] -= 1
            if self.pairs[pair]:
                return
            del self.pairs[pair]
        for end in pair:
            end.close()

    @contextlib.contextmanager
    def blocked(self):
        self.passes.clear()
        try:
            yield
        finally:
            self.passes.set()

    def cut(self):
        with self.lock:
            pairs, self.pairs = self.pairs, {}
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        return len(pairs)

    def close(self):
        self.stopped = True
        self.listener.close()
        self.cut()


class Loser:
    """A way by TLS to a port of this machine that reads requests, and does with the answers to some what a test says:
    `lose` is a pattern of "METHOD PATH", `times` how many are lost behind it; `instead` is an answer that is given
    without anybody having been asked."""

    def __init__(self, port, ca, cert, key):
        self.port = port
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.load_cert_chain(cert, key)
        self.client = ssl.create_default_context(cafile=ca)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lose, self.times, self.instead, self.twice = None, 0, None, None
        self.seen = []
        self.stopped = False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.stopped:
            with contextlib.suppress(OSError):
                near, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(near,), daemon=True).start()

    @staticmethod
    def read_message(sock, rest=b""):
        """One request or answer with a length, or with chunks; what is behind it is no part."""
        data = rest
        while b"\r\n\r\n" not in data:
            piece = sock.recv(65536)
            if not piece:
                return b""
            data += piece
        head, body = data.split(b"\r\n\r\n", 1)
        length = re.search(rb"(?im)^content-length: *(\d+)", head)
        if re.search(rb"(?im)^transfer-encoding: *chunked", head):
            while not body.endswith(b"0\r\n\r\n") and (piece := sock.recv(65536)):
                body += piece
        while length and len(body) < int(length[1]) and (piece := sock.recv(65536)):
            body += piece
        return head + b"\r\n\r\n" + body

    def ask(self, request):
        far = self.client.wrap_socket(socket.create_connection(("127.0.0.1", self.port)), server_hostname="127.0.0.1")
        far.sendall(request)
        return far

    def serve(self, raw):
        with contextlib.suppress(OSError), self.server.wrap_socket(raw, server_side=True) as near:
            while request := self.read_message(near):
                line = request.split(b" HTTP/", 1)[0].decode()
                self.seen.append(line)
                hit = self.times > 0 and self.lose and re.fullmatch(self.lose, line)
                if hit:
                    self.times -= 1
                if hit and self.instead:
                    near.sendall(self.instead)
                    continue
                with self.ask(request) as far:
                    if b"upgrade: websocket" in request.lower():
                        self.splice(near, far)
                        return
                    answer = self.read_message(far)
                if hit and self.twice:  # as when somebody between says it again
                    with self.ask(request) as far:
                        self.read_message(far)
                if hit:
                    return
                near.sendall(answer)

    @staticmethod
    def splice(a, b):
        """In one thread: two must not use the same TLS connection at once."""
        while True:
            ready = [end for end in (a, b) if end.pending()] or select.select([a, b], [], [])[0]
            for end in ready:
                piece = end.recv(65536)
                if not piece:
                    return
                (b if end is a else a).sendall(piece)

    def close(self):
        self.stopped = True
        self.listener.close()
