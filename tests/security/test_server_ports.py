"""Wall: the reverse proxy, and what a sandbox can reach. The program behind a port is hostile: what
it answers is one answer to one request, or 502. Nothing that anybody sends decides where the server
connects to, and nothing in a sandbox reaches the server."""

import base64
import json
import re
import secrets
import socket
import threading
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import check_error, free_port

from .server_kit import (Raw, alice, bob, check_no_leak, create, execute, out, server, works)

APP = rb'''
import base64, socket, threading, time
def serve(port, talk):
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    def one(conn):
        with conn:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = conn.recv(65536)
                if not piece: return
                head += piece
            try: talk(conn, head)
            except OSError: pass
    def loop():
        while True:
            threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=loop, daemon=True).start()
def echo(conn, head):
    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
def parrot(conn, head):
    path, _, then = head.split()[1].decode()[1:].partition("?then=")
    conn.sendall(base64.urlsafe_b64decode(path))
    while then == "flood": conn.sendall(b"X-Flood: " + b"f" * 1000 + b"\r\n")
    while then == "interim": conn.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
    while then == "drip": conn.sendall(b"x"); time.sleep(0.2)
    while then == "body": conn.sendall(b"y" * 65536)
    if then == "stay": time.sleep(60)
serve(8000, echo)
serve(8001, parrot)
print("ready", flush=True)
time.sleep(1000)
'''


@pytest.fixture(scope="module")
def app(alice):
    """Alice's sandbox with an echo at 8000 and a parrot at 8001."""
    base = f"/v1/sandboxes/{alice.sandbox}"
    alice.put(f"{base}/files?path=app.py", data=APP)
    made = alice.post(f"{base}/processes", json={"argv": ["python3", "-u", "app.py"]}).json()
    paddock.wait_for(lambda: b"ready" in alice.get(f"{base}/processes/{made['process_id']}/output").body,
                     20, "the application listens")
    return alice


def path(app, target="/", port=8000):
    return f"/v1/sandboxes/{app.sandbox}/ports/{port}{target}"


def host(app, port=8000):
    return f"{port}-{app.sandbox}.localhost:{app.port}"


def ask(app, target, *lines, port=8000, by_host=False, method="GET", key=True, client=None):
    """One request to a port, and another one behind it on the same connection: all answers."""
    with Raw(client or app) as raw:
        if by_host:
            raw.head(method, target, *lines, host=host(app, port), key=key)
        else:
            raw.head(method, path(app, target, port), *lines, key=key)
        return raw.answer()


def said(data, then="close"):
    return "/" + base64.urlsafe_b64encode(data).decode() + "?then=" + then


def test_the_control(app):
    for by_host in (False, True):
        seen = ask(app, "/x?y=1", "X-Mine: 1", by_host=by_host)
        assert seen.status == 200 and seen.body.startswith(b"GET /x?y=1 HTTP/1.1\r\n")
        assert b"\r\nX-Mine: 1\r\n" in seen.body
    good = ask(app, said(b"HTTP/1.1 201 Fine\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi"), port=8001)
    assert (good.status, good.body, good.headers["X-A"]) == (201, b"hi", "b")


# ---- A48: what must not come along ----


@pytest.mark.parametrize("by_host", [False, True])
def test_keys_do_not_reach_the_program(app, by_host):
    for lines in ([f"X-API-Key: {app.key}"], [f"Authorization: Bearer {app.key}"],
                  [f"authorization: bearer {app.key}"],
                  [f"X-API-Key: {app.key}", "Connection: X-Nothing"]):
        seen = ask(app, "/", *lines, key=False, by_host=by_host)
        assert seen.status == 200, seen
        assert app.key.encode() not in seen.body and b"authorization" not in seen.body.lower()
    token = ask(app, "/preview", method="POST", key=True).json()["url"].split("paddock_preview=")[1]
    seen = ask(app, f"/x?a=b&paddock_preview={token}", f"Cookie: a=b; paddock_preview={token}", key=False,
               by_host=by_host)
    assert seen.status == 200 and token.encode() not in seen.body


@pytest.mark.parametrize("by_host", [False, True])
def test_claims_about_the_client_are_the_servers(app, by_host):
    seen = ask(app, "/", "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: evil.example", "Forwarded: for=1.2.3.4",
               "X-Real-IP: 1.2.3.4", "X-Request-Id: forged", "Via: 1.1 evil", by_host=by_host)
    text = seen.body.decode().lower()
    assert "1.2.3.4" not in text and "evil" not in text and "forged" not in text
    assert "x-forwarded-for: 127.0.0.1" in text


@pytest.mark.parametrize("by_host", [False, True])
def test_hop_by_hop_headers_stay_here(app, by_host):
    """Also those that Connection names, but never so that what the server adds gets lost."""
    seen = ask(app, "/", "Connection: X-Secret, Host, X-Forwarded-For, Content-Length", "X-Secret: 1", "TE: trailers",
               "Keep-Alive: timeout=5", "Proxy-Authorization: Basic eA==", "Upgrade: h2c", by_host=by_host)
    text = seen.body.decode().lower()
    assert seen.status == 200
    for name in ("x-secret", "keep-alive:", "proxy-authorization", "upgrade:", "te:"):
        assert f"\r\n{name}" not in text, text
    assert "\r\nhost: " in text and "\r\nx-forwarded-for: " in text


# ---- A46, A47: no way to elsewhere ----


def test_the_server_connects_to_no_port_of_its_host(app):
    """A service on the host's loopback is not found behind any port, name or form of an address. The
    control: the host itself reaches it."""
    hits = []
    listener = socket.create_server(("127.0.0.1", free_port()))
    number = listener.getsockname()[1]

    def accept():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            hits.append(conn.recv(100))
            conn.close()

    threading.Thread(target=accept, daemon=True).start()
    try:
        for port in (number, app.port):
            for by_host in (False, True):
                check_error(ask(app, "/healthz", port=port, by_host=by_host), 502, "bad_gateway")
        for crooked in (f"127.0.0.1:{number}", f"{number}@127.0.0.1", f"[::1]:{number}", f"%31{str(number)[1:]}x",
                        f"{number}%20", f"+{number}", f"0{number}", f"{number}.0", "http:"):
            with Raw(app) as raw:
                raw.head("GET", f"/v1/sandboxes/{app.sandbox}/ports/{crooked}/x")
                assert raw.answer().status in (400, 404, 502)
        for target in (f"http://127.0.0.1:{number}/", f"//127.0.0.1:{number}/", f"/@127.0.0.1:{number}/",
                       f"/..//127.0.0.1:{number}/"):
            with Raw(app) as raw:
                raw.head("GET", target, host=host(app))
                assert raw.answer().status in (200, 400)
        for name in (f"8000-{app.sandbox}.localhost@127.0.0.1:{number}", f"127.0.0.1:{number}",
                     f"{number}-{app.sandbox}.localhost.evil.example", f"{app.sandbox}.localhost",
                     f"8000-{app.sandbox}x.localhost", f"8000-{app.sandbox}", f"08000-{app.sandbox}.localhost"):
            with Raw(app) as raw:
                raw.head("GET", "/x", host=name)
                assert raw.answer().status in (400, 401, 403, 404)
        # Where the program's answers point to is the client's business.
        for place in (f"http://127.0.0.1:{number}/", "http://169.254.169.254/latest", "file:///etc/passwd"):
            got = ask(app, said(f"HTTP/1.1 302 x\r\nLocation: {place}\r\nContent-Length: 0\r\n"
                                f"X-Accel-Redirect: {place}\r\nX-Sendfile: /etc/passwd\r\n\r\n".encode()), port=8001)
            assert got.status == 302 and got.headers["Location"] == place
            assert "x-accel-redirect" not in got.headers and "x-sendfile" not in got.headers
        time.sleep(0.2)
        assert hits == []
        with socket.create_connection(("127.0.0.1", number)) as s:
            s.sendall(b"control")
        paddock.wait_for(lambda: hits == [b"control"], 5, "the control is seen")
    finally:
        listener.close()


# ---- A50: hostile answers ----

NONSENSE = {
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nab",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a minus": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "2^64": b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nX: y\n\nhello",
    "bare CR": b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 0\r\n\r\n",
    "folding": b"HTTP/1.1 200 OK\r\nX: a\r\n Set-Cookie: b\r\nContent-Length: 0\r\n\r\n",
    "NUL": b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    "blank before the colon": b"HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 0\r\n\r\n",
    "no name": b"HTTP/1.1 200 OK\r\n: a\r\nContent-Length: 0\r\n\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "status 99": b"HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 x\r\nContent-Length: 0\r\n\r\n",
    "status 2000": b"HTTP/1.1 2000 x\r\nContent-Length: 0\r\n\r\n",
    "reason with an escape": b"HTTP/1.1 200 \x1b[2J\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"<html>hello</html>",
    "a request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes": bytes(range(256)) * 10,
    "101 unasked": b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nsmuggled",
    "204 with a body": b"HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\nhello",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nX: y\r\n",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 500 + b"\r\n",
}


@pytest.mark.parametrize("by_host", [False, True], ids=["path", "host"])
@pytest.mark.parametrize("name", NONSENSE)
def test_what_is_no_answer_is_a_bad_gateway(app, name, by_host):
    answer = ask(app, said(NONSENSE[name]), port=8001, by_host=by_host)
    check_error(answer, 502, "bad_gateway")
    check_no_leak(answer)
    assert "set-cookie" not in answer.headers and b"smuggled" not in answer.body


@pytest.mark.parametrize("then", ["flood", "interim"])
def test_heads_without_end(server, app, bob, then):
    """Bounded: the request ends soon with 502, others are served meanwhile."""
    begin = b"HTTP/1.1 200 OK\r\n" if then == "flood" else b""
    began = time.monotonic()
    check_error(ask(app, said(begin, then), port=8001), 502, "bad_gateway")
    assert time.monotonic() - began < paddock.seconds(10)
    works(bob, 5)


def test_a_head_that_drips_holds_only_its_own_client(app, bob):
    with Raw(app) as raw:
        raw.head("GET", path(app, said(b"HTTP/1.1 200 OK\r\nX: ", "drip"), 8001))
        for _ in range(3):
            works(bob, 5)
        assert ask(app, "/").status == 200


def test_a_body_without_end_is_the_clients_to_leave(app, bob):
    """What nobody reads is not gathered in the server."""
    with Raw(app) as raw:
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.head("GET", path(app, said(b"HTTP/1.1 200 OK\r\n\r\n", "body"), 8001))
        end = time.monotonic() + 1
        while time.monotonic() < end:
            works(bob, 5)
    assert ask(app, "/").status == 200


BROKEN = {
    "a size that is none": b"xyz\r\nhello\r\n0\r\n\r\n", "a minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "17 digits": b"10000000000000000\r\nx", "no line end": b"5\r\nhello0\r\n\r\n",
    "longer": b"5\r\nhello!\r\n0\r\n\r\n", "bare LF": b"5\nhello\n0\n\n", "cut": b"5\r\nhel", "nothing": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_chunks_that_are_none_are_broken_off(app, name):
    """The client notices: the answer has no proper end, and nothing follows."""
    with Raw(app) as raw:
        raw.head("GET", path(app, said(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + BROKEN[name]), 8001))
        raw.try_send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises((EOFError, ConnectionResetError)):
            answer = raw.answer()
            assert answer.status == 502, answer
            raise EOFError


@pytest.mark.parametrize("by_host", [False, True], ids=["path", "host"])
def test_a_second_answer_is_nobodys(app, by_host):
    """Response splitting: what follows an answer is not the answer to the next request, neither of
    this client nor of another one."""
    smuggled = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nX-Smuggled: 1\r\n\r\nsmuggled"
    for first in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                  b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                  b"HTTP/1.1 204 No\r\n\r\n", b"HTTP/1.1 304 No\r\nContent-Length: 8\r\n\r\n"):
        with Raw(app) as raw:
            for _ in range(2):
                if by_host:
                    raw.head("GET", said(first + smuggled, "stay"), host=host(app, 8001))
                else:
                    raw.head("GET", path(app, said(first + smuggled, "stay"), 8001))
                answer = raw.answer()
                assert b"smuggled" not in answer.body and "x-smuggled" not in answer.headers
            raw.head("GET", "/healthz")
            answer = raw.answer()
            assert answer.status == 200 and answer.body == b"ok\n"


def test_an_answer_cannot_speak_for_the_server(app):
    """By path all share one origin: nothing passes that would hold for all of it."""
    lines = ["Set-Cookie: a=b", "Set-Cookie: paddock_preview=forged; Domain=localhost", "Clear-Site-Data: \"*\"",
             "Service-Worker-Allowed: /", "Strict-Transport-Security: max-age=1", "X-Request-Id: forged",
             "Access-Control-Allow-Origin: *", "Content-Security-Policy: default-src *", "Connection: keep-alive",
             "Keep-Alive: timeout=1", "Upgrade: h2c", "Trailer: X"]
    data = ("HTTP/1.1 200 OK\r\n" + "\r\n".join(lines) + "\r\nContent-Length: 0\r\n\r\n").encode()
    answer = ask(app, said(data), port=8001)
    assert answer.status == 200
    for name in ("set-cookie", "clear-site-data", "service-worker-allowed", "strict-transport-security",
                 "keep-alive", "upgrade", "trailer"):
        assert name not in answer.headers, name
    assert answer.headers["X-Request-Id"] != "forged"
    with Raw(app) as raw:
        raw.head("GET", path(app, said(data), 8001))
        while b"\r\n\r\n" not in raw.data:
            raw._more()
        assert b"sandbox" in raw.data.split(b"\r\n\r\n")[0].lower().split(b"content-security-policy:")[-1]
    by_host = ask(app, said(data), port=8001, by_host=True)
    cookies = by_host.headers.get("Set-Cookie", "")
    assert "domain" not in cookies.lower() and "forged" not in cookies


# ---- A59: links ----


@pytest.fixture(scope="module")
def token(app):
    return ask(app, "/preview", method="POST").json()["url"].split("paddock_preview=")[1]


@pytest.mark.parametrize("by_host", [False, True], ids=["path", "host"])
def test_tokens_open_one_port_of_one_sandbox(app, bob, token, by_host):
    def status(token, port=8000, of=app):
        return ask(of, f"/x?paddock_preview={token}", port=port, by_host=by_host, key=False).status

    assert status(token) == 200, "the control"
    assert status(token, port=8001) == 401
    assert status(token, of=bob) == 401
    for at in range(0, len(token), 5):
        other = token[:at] + ("0" if token[at] != "0" else "1") + token[at + 1:]
        assert status(other) == 401, f"byte {at} does not matter"
    for forged in ("", "x", token[:-1], token + "0", token.upper(), token + "%00", token * 3, "a" * 3000,
                   token.replace(app.sandbox, bob.sandbox), f"{token}&paddock_preview={token}"):
        if forged != token:
            assert status(forged) in (400, 401, 414)


def test_a_token_ends(app):
    """The control: one of the same form that has time is good for as long."""
    def made(expires_in_s):
        body = json.dumps({"expires_in_s": expires_in_s})
        with Raw(app) as raw:
            raw.head("POST", path(app, "/preview"), "Content-Type: application/json", f"Content-Length: {len(body)}")
            raw.send(body)
            return raw.answer().json()["url"].split("paddock_preview=")[1]

    def status(token):
        return ask(app, f"/?paddock_preview={token}", key=False).status

    plain = ask(app, "/preview", 'Content-Type: application/json', "Content-Length: 0", method="POST")
    assert plain.status == 200
    short, long = made(1), made(3600)
    paddock.wait_for(lambda: status(short) == 401, 5, "it ends")
    assert status(long) == 200


def test_a_token_is_no_key(app, token):
    for method, target in (("GET", "/v1/sandboxes"), ("GET", f"/v1/sandboxes/{app.sandbox}"),
                           ("POST", f"/v1/sandboxes/{app.sandbox}/exec"),
                           ("POST", f"/v1/sandboxes/{app.sandbox}/ports/8000/preview"),
                           ("GET", f"/v1/sandboxes/{app.sandbox}/ports")):
        for lines, query in (([], f"?paddock_preview={token}"), ([f"Cookie: paddock_preview={token}"], ""),
                             ([f"X-API-Key: {token}"], ""), ([f"Authorization: Bearer {token}"], "")):
            with Raw(app) as raw:
                raw.head(method, target + query, "Content-Length: 0", *lines, key=False)
                check_error(raw.answer(), 401)


def test_a_token_of_a_sandbox_that_is_gone(server, alice):
    """Neither before nor after its end does a link lead to another sandbox."""
    sandbox = create(alice)
    with Raw(alice) as raw:
        raw.head("POST", f"/v1/sandboxes/{sandbox}/ports/8000/preview", "Content-Length: 0")
        token = raw.answer().json()["url"].split("paddock_preview=")[1]
    target = f"/v1/sandboxes/{sandbox}/ports/8000/?paddock_preview={token}"
    with Raw(alice) as raw:
        raw.head("GET", target, key=False)
        check_error(raw.answer(), 502)
    alice.delete(f"/v1/sandboxes/{sandbox}")
    with Raw(alice) as raw:
        raw.head("GET", target, key=False)
        check_error(raw.answer(), (404, 410))


# ---- what a sandbox reaches ----


def test_a_sandbox_does_not_reach_the_server(server, alice):
    """No address leads there: not its own loopback, not the host's addresses, no socket file, no
    abstract socket. The control: the same program reaches a listener of its own."""
    addresses = ["127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "::ffff:127.0.0.1", "169.254.169.254"]
    try:
        addresses.append(socket.gethostbyname(socket.gethostname()))
    except OSError:
        pass
    code = f"""
import os, socket
def tries(address, port):
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family) as s:
                s.settimeout(2)
                s.connect((address, port))
                return True
        except OSError: pass
    return False
own = socket.create_server(("127.0.0.1", 0))
print("control", tries("127.0.0.1", own.getsockname()[1]))
for address in {addresses!r}:
    for port in ({server.port}, 8090, 22, 80):
        if tries(address, port): print("REACHED", address, port)
for path in ({server.run_dir + "/paddock.sock"!r}, {server.run_dir + "/keeper.sock"!r}, "/run/paddock/paddock.sock",
             "/run/paddock/keeper.sock", "/var/run/docker.sock"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        try:
            s = socket.socket(socket.AF_UNIX, kind); s.connect(path); print("REACHED", path)
        except OSError: pass
for path in ({server.state_dir!r}, {server.run_dir!r}, {server.directory!r}):
    if os.path.exists(path): print("SEEN", path)
print("end")
"""
    alice.put(f"/v1/sandboxes/{alice.sandbox}/files?path=reach.py", data=code.encode())
    for user in ("user", "root"):
        result = execute(alice, "python3 reach.py", user=user)
        assert result["stdout"].split("\n") == ["control True", "end", ""], result


def test_nothing_of_the_server_is_in_a_sandbox(server, alice):
    """Neither its variables, nor its key, nor a descriptor, in commands, terminals, files' workers
    and init; and nothing of it can be listened to on the outside."""
    text = out(alice, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; "
                      "ls -l /proc/self/fd")
    assert "PATH=" in text, "the control"
    for word in ("PADDOCK_", server.key, server.state_dir, server.run_dir, "e2b_", "LISTEN_FDS", "NOTIFY_SOCKET"):
        assert word not in text, word
    # A listener in a sandbox is one of the sandbox: on the host nobody hears it.
    number = free_port()
    started = alice.post(f"/v1/sandboxes/{alice.sandbox}/processes", json={
        "argv": ["python3", "-c", f"import socket,time; s=socket.create_server(('0.0.0.0',{number})); time.sleep(60)"]})
    paddock.wait_for(lambda: number in [p["port"] for p in alice.get(
        f"/v1/sandboxes/{alice.sandbox}/ports").json()["ports"]], 10, "the control: it listens inside")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", number), timeout=2)
    alice.delete(f"/v1/sandboxes/{alice.sandbox}/processes/{started.json()['process_id']}")


def test_two_sandboxes_do_not_reach_each_other(alice, bob, app):
    """Alice's application is not there for bob's code."""
    code = ("import socket\nfor a in ('127.0.0.1', '10.0.0.1', '172.17.0.1', '192.168.0.1'):\n"
            "    for p in (8000, 8001):\n"
            "        s = socket.socket(); s.settimeout(1)\n"
            "        try: s.connect((a, p)); print('REACHED', a, p)\n"
            "        except OSError: pass\nprint('end')")
    ran = bob.post(f"/v1/sandboxes/{bob.sandbox}/exec", json={"argv": ["python3", "-c", code]}).json()
    assert ran["stdout"] == "end\n"
    ran = alice.post(f"/v1/sandboxes/{alice.sandbox}/exec", json={"argv": ["python3", "-c", code]}).json()
    assert ran["stdout"].startswith("REACHED 127.0.0.1 8000\n"), "the control"
