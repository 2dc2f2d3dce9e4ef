"""The far side of internet.py: DNS, HTTP, TLS, a server that echoes, one that speaks first, and SOCKS5 proxies."""

import gzip
import hashlib
import json
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

NAMES = {
    "a.example": ["203.0.113.7"],
    "b.example": ["203.0.113.8"],
    "sub.a.example": ["203.0.113.7"],
    "private.example": ["10.9.9.9"],
    "metadata.example": ["169.254.169.254"],
    "machine.example": ["192.0.2.129"],
    "loopback.example": ["127.0.0.1"],
    "forged.example": ["203.0.113.7"],
    "two.example": ["10.9.9.9", "203.0.113.7"],
    "proxy.example": ["203.0.113.8"],
    "private-proxy.example": ["10.9.9.9"],
}
flips = {"flip.example": [["203.0.113.7"], ["10.9.9.9"]]}
asked = {}
log = []
proxied = []


def name_of(data):
    labels, at = [], 12
    while data[at]:
        labels.append(data[at + 1:at + 1 + data[at]].decode("latin1").lower())
        at += 1 + data[at]
    return ".".join(labels), at + 1


def answer(data):
    name, at = name_of(data)
    kind = int.from_bytes(data[at:at + 2], "big")
    log.append((name, kind))
    addresses = NAMES.get(name)
    if name in flips:
        n = asked.get(name, 0)
        if kind == 1:
            asked[name] = n + 1
        addresses = flips[name][min(n, 1)]
    head = data[:2] + (b"\x81\x80" if addresses else b"\x81\x83") + b"\0\1"
    body = b""
    count = 0
    for a in addresses or []:
        if kind == 1:
            body += b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(a)
            count += 1
    return head + count.to_bytes(2, "big") + b"\0\0\0\0" + data[12:at + 4] + body


def forge(s, other, data, who):
    """Answers that lead to 203.0.113.8, before the true one: of another number, to another question, from elsewhere."""
    lie = answer(data).replace(socket.inet_aton("203.0.113.7"), socket.inet_aton("203.0.113.8"))
    s.sendto(bytes([lie[0] ^ 1]) + lie[1:], who)
    s.sendto(lie.replace(b"forged", b"forger"), who)
    other.sendto(lie, who)


def dns():
    s, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    s.bind(("203.0.113.53", 53))
    other.bind(("203.0.113.8", 53))
    print("ready", flush=True)
    while True:
        data, who = s.recvfrom(2000)
        if name_of(data)[0] == "forged.example":
            forge(s, other, data, who)
        s.sendto(answer(data), who)


def read_head(c):
    data = b""
    while b"\r\n\r\n" not in data:
        more = c.recv(4096)
        if not more:
            return data
        data += more
    return data


def answer_http(c, status, body, *headers):
    c.sendall(b"".join([b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body),
                        *(h + b"\r\n" for h in headers), b"\r\n", body]))


def value_of(head, name):
    for line in head.split(b"\r\n"):
        if line.lower().startswith(name + b": "):
            return line[len(name) + 2:]
    return b""


def echoes(c, head, path):
    """Tells what it was asked, in several ways: what a server may do with a secret."""
    path = path.split(b"?")[0]
    if path == b"/echo":
        answer_http(c, b"200 OK", head)
    elif path == b"/echo-head":
        answer_http(c, b"200 " + value_of(head, b"x-key"), b"see the head\n", b"X-Echo: " + value_of(head, b"x-key"),
                    b"Location: https://b.example/?k=" + value_of(head, b"x-key"))
    elif path == b"/echo-split":
        c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for byte in head:
            c.sendall(bytes([byte]))
        if isinstance(c, ssl.SSLSocket):
            c.unwrap()  # the end of this answer is that of the connection: it has to be said
    elif path == b"/echo-chunks":
        c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        for i in range(0, len(head), 5):
            c.sendall(b"%x\r\n%s\r\n" % (len(head[i:i + 5]), head[i:i + 5]))
        c.sendall(b"0\r\nX-Trailer: " + value_of(head, b"x-key") + b"\r\n\r\n")
    elif path == b"/echo-length":
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: " + value_of(head, b"x-key") + b"\r\n\r\n")
    elif path == b"/echo-name":  # a name that is one, with a value that is none
        c.sendall(b"HTTP/1.1 200 OK\r\n" + value_of(head, b"x-key").split(b"/")[0] + b": \x01\r\n\r\n")
    elif path == b"/echo-status":
        c.sendall(b"HTTP/1.1 " + value_of(head, b"x-key") + b"\r\n\r\n")
    elif path == b"/echo-gzip":
        answer_http(c, b"200 OK", gzip.compress(head), b"Content-Encoding: gzip")
    elif path == b"/echo-json":
        answer_http(c, b"200 OK", json.dumps({"key": value_of(head, b"x-key").decode()}).encode())
    elif path == b"/redirect":
        answer_http(c, b"302 Found", b"", b"Location: https://b.example/echo")
    elif path == b"/key":  # what really came, for the tester alone: not by a byte that is in it
        answer_http(c, b"200 OK", hashlib.sha256(value_of(head, b"x-key")).hexdigest().encode())
    elif path == b"/authorization":
        answer_http(c, b"200 OK", hashlib.sha256(value_of(head, b"authorization")).hexdigest().encode())
    else:
        return False
    return True


def digest(text):
    return hashlib.sha256(text).hexdigest()


def models(c, head, path):
    """Stand-ins for two vendors' models: each answers with a digest of the key that it was given."""
    head, _, body = head.partition(b"\r\n\r\n")
    length = int(value_of(head, b"content-length") or 0)
    while len(body) < length and (more := c.recv(65536)):
        body += more
    key = digest(value_of(head, b"x-api-key") or value_of(head, b"authorization").removeprefix(b"Bearer "))
    if path == b"/v1/chat/completions":
        message = {"role": "assistant", "content": key}
        told = {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    else:
        told = {"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
                "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
                "content": [{"type": "text", "text": key}]}
    answer_http(c, b"200 OK", json.dumps(told).encode(), b"Content-Type: application/json")


def repository(c, head, path):
    """Files of a repository, for those whose credentials have the digest that lies beside it."""
    top = Path(sys.argv[1], "www")
    file = top / path.decode().split("?")[0].lstrip("/")
    if digest(value_of(head, b"authorization")) != (top / "allowed").read_text():
        answer_http(c, b"401 Unauthorized", b"", b'WWW-Authenticate: Basic realm="test"')
    elif ".." in file.parts or not file.is_file():
        answer_http(c, b"404 Not Found", b"")
    else:
        answer_http(c, b"200 OK", file.read_bytes())


def http(c, address):
    head = read_head(c)
    path = head.split(b" ")[1] if head.count(b" ") > 1 else b"/"
    if echoes(c, head, path):
        return
    if path in (b"/v1/chat/completions", b"/v1/messages"):
        models(c, head, path)
        return
    if path.startswith(b"/repo.git/"):
        repository(c, head, path)
        return
    if path.startswith(b"/big"):
        size = int(path[4:])
        c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for _ in range(size // 1000):
            c.sendall(b"x" * 1000)
    elif path == b"/slow":
        c.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + b"begun\n")
        while True:
            c.sendall(b"x" * 500)
            time.sleep(0.01)
    elif path == b"/proxied":
        answer_http(c, b"200 OK", json.dumps(proxied).encode())
    elif path == b"/questions":
        text = " ".join(f"{n}/{k}" for n, k in log).encode() + b"\n"
        c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text)
                  + text)
    else:
        text = b"reached " + address.encode() + b"\n"
        c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text)
                  + text)


def echo(c, _):
    while True:
        data = c.recv(65536)
        if not data:
            return
        c.sendall(data)


def speaks_first(c, _):
    c.sendall(b"hello from the server\n")
    data = c.recv(65536)
    c.sendall(b"got %d\n" % len(data))


def read_exactly(c, count):
    data = b""
    while len(data) < count:
        more = c.recv(count - len(data))
        if not more:
            raise OSError("ended")
        data += more
    return data


def copy(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)


def socks(c, _, login=None):
    """RFC 1928. What it was asked for is in `proxied`; its answers come byte by byte, together with the host's first."""
    methods = read_exactly(c, read_exactly(c, 2)[1])
    wanted = 2 if login else 0
    if wanted not in methods:
        c.sendall(b"\5\xff")
        return
    c.sendall(bytes([5, wanted]))
    if login:
        user = read_exactly(c, read_exactly(c, 2)[1])
        password = read_exactly(c, read_exactly(c, 1)[0])
        c.sendall(bytes([1, (user, password) != login]))
        if (user, password) != login:
            return
    kind = read_exactly(c, 4)[3]
    host = (read_exactly(c, read_exactly(c, 1)[0]).decode() if kind == 3 else
            socket.inet_ntop(socket.AF_INET if kind == 1 else socket.AF_INET6, read_exactly(c, 4 if kind == 1 else 16)))
    port = int.from_bytes(read_exactly(c, 2), "big")
    proxied.append([kind, host, port])
    address = NAMES.get(host, [host])[0] if kind == 3 else host
    try:
        far = socket.create_connection((address, port), 20)
    except OSError:
        c.sendall(b"\5\5\0\1\0\0\0\0\0\0")
        return
    c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"\5\0\0\3\4host\0\1":
        c.sendall(bytes([byte]))
    threading.Thread(target=copy, args=(c, far), daemon=True).start()
    copy(far, c)


def socks_login(c, address):
    socks(c, address, (b"me", b"pass-4711"))


def serve(port, handler, context=None):
    s = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)

    def one(c, address):
        try:
            if context:
                c = context.wrap_socket(c, server_side=True)
            handler(c, address)
            c.shutdown(socket.SHUT_WR)
            c.recv(1)
        except OSError:
            pass
        finally:
            c.close()

    while True:
        c, _ = s.accept()
        address = c.getsockname()[0].removeprefix("::ffff:")
        threading.Thread(target=one, args=(c, address), daemon=True).start()


def main():
    print("made", flush=True)
    sys.stdin.readline()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{sys.argv[1]}/cert", f"{sys.argv[1]}/key")
    for port, handler, tls in ((80, http, None), (443, http, context), (7777, echo, None),
                               (2222, speaks_first, None), (1080, socks, None), (1081, socks_login, None)):
        threading.Thread(target=serve, args=(port, handler, tls), daemon=True).start()
    dns()


main()
