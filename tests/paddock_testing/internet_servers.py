"""The far side of internet.py: DNS, HTTP, TLS, a server that echoes and one that speaks first."""

import socket
import ssl
import sys
import threading
import time

NAMES = {
    "a.example": ["203.0.113.7"],
    "b.example": ["203.0.113.8"],
    "sub.a.example": ["203.0.113.7"],
    "private.example": ["10.9.9.9"],
    "metadata.example": ["169.254.169.254"],
    "machine.example": ["192.0.2.129"],
    "loopback.example": ["127.0.0.1"],
    "two.example": ["10.9.9.9", "203.0.113.7"],
}
flips = {"flip.example": [["203.0.113.7"], ["10.9.9.9"]]}
asked = {}
log = []


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


def dns():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("203.0.113.53", 53))
    print("ready", flush=True)
    while True:
        data, who = s.recvfrom(2000)
        s.sendto(answer(data), who)


def read_head(c):
    data = b""
    while b"\r\n\r\n" not in data:
        more = c.recv(4096)
        if not more:
            return data
        data += more
    return data


def http(c, address):
    head = read_head(c)
    path = head.split(b" ")[1] if head.count(b" ") > 1 else b"/"
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
                               (2222, speaks_first, None)):
        threading.Thread(target=serve, args=(port, handler, tls), daemon=True).start()
    dns()


main()
