"""Wall: the server's HTTP. Whatever bytes come in, one request gets one answer; what two parsers
could read in two ways is refused, with one error, and the connection ends. The control of the
tables: the same request in its proper form is answered and the connection goes on."""

import json
import secrets
import socket
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import check_error

from .server_kit import (Many, Raw, alice, ask, bob, check_no_leak, clean_log, create, execute,
                         refused_once, server, works)

NEXT = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"  # what an attacker hides behind


def head(*lines, method="POST", target="/v1/sandboxes", version="HTTP/1.1", host="localhost"):
    return "\r\n".join([f"{method} {target} {version}", *([f"Host: {host}"] if host else []),
                        *lines]) + "\r\n\r\n"


# ---- A08-A12, A21: one request, one answer ----

SMUGGLED = {
    "CL.TE": head("Content-Length: 6", "Transfer-Encoding: chunked") + "0\r\n\r\nG",
    "TE.CL": head("Transfer-Encoding: chunked", "Content-Length: 4") + "5c\r\n" + NEXT + "0\r\n\r\n",
    "CL twice": head("Content-Length: 0", "Content-Length: 44"),
    "CL twice, same": head("Content-Length: 5", "Content-Length: 5") + "hello",
    "CL list": head("Content-Length: 5, 5") + "hello",
    "CL plus": head("Content-Length: +5") + "hello",
    "CL minus": head("Content-Length: -1"),
    "CL hex": head("Content-Length: 0x5") + "hello",
    "CL blanks": head("Content-Length: 5 5") + "hello",
    "CL 2^63": head("Content-Length: 9223372036854775808"),
    "CL 2^64": head("Content-Length: 18446744073709551616"),
    "CL 2^64+5": head("Content-Length: 18446744073709551621") + "hello",
    "CL 30 digits": head("Content-Length: " + "1" * 30),
    "CL empty": head("Content-Length:"),
    "CL octal": head("Content-Length: 010"),
    "CL float": head("Content-Length: 5.0") + "hello",
    "CL tab inside": head("Content-Length: 5\t5") + "hello",
    "CL blank before the colon": head("Content-Length : 44"),
    "CL in a folded line": head("X: a", " Content-Length: 44"),
    "TE x": head("Transfer-Encoding: xchunked"),
    "TE list": head("Transfer-Encoding: chunked, identity"),
    "TE list 2": head("Transfer-Encoding: identity, chunked"),
    "TE gzip": head("Transfer-Encoding: gzip, chunked"),
    "TE vertical tab": head("Transfer-Encoding: \x0bchunked"),
    "TE quoted": head('Transfer-Encoding: "chunked"'),
    "TE twice": head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + "0\r\n\r\n",
    "TE twice, other": head("Transfer-Encoding: chunked", "Transfer-encoding: cow") + "0\r\n\r\n",
    "TE on 1.0": head("Transfer-Encoding: chunked", version="HTTP/1.0") + "0\r\n\r\n",
    "TE blank before the colon": head("Transfer-Encoding : chunked") + "0\r\n\r\n",
    "TE empty": head("Transfer-Encoding:") + "0\r\n\r\n",
    "bare LF": f"POST /v1/sandboxes HTTP/1.1\nHost: localhost\n\n",
    "one bare LF": "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
    "bare CR": "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
    "CR CR LF": "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\r\n\r\n",
    "folding": head("X-A: b", "\tc"),
    "first line folded": "POST /v1/sandboxes HTTP/1.1\r\n X: y\r\nHost: localhost\r\n\r\n",
    "blank before the colon": head("X-A : b"),
    "no colon": head("X-A"),
    "no name": head(": b"),
    "NUL in a value": head("X-A: b\0c"),
    "NUL in a name": head("X\0A: b"),
    "0x80 in a name": head("X\x80: b"),
    "escape in a value": head("X-A: \x1b[2J"),
    "DEL in a value": head("X-A: \x7f"),
    "two blanks": "POST  /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "blank at the end": "POST /v1/sandboxes HTTP/1.1 \r\nHost: localhost\r\n\r\n",
    "tab instead": "POST\t/v1/sandboxes\tHTTP/1.1\r\nHost: localhost\r\n\r\n",
    "empty line first": "\r\n" + NEXT,
    "HTTP/0.9": "GET /healthz\r\n\r\n",
    "HTTP/1.1x": head(method="GET", target="/healthz", version="HTTP/1.1x"),
    "HTTP/01.1": head(method="GET", target="/healthz", version="HTTP/01.1"),
    "http/1.1": head(method="GET", target="/healthz", version="http/1.1"),
    "HTTP/1.2": head(method="GET", target="/healthz", version="HTTP/1.2"),
    "HTTP/2.0": head(method="GET", target="/healthz", version="HTTP/2.0"),
    "HTTP/2 preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "SOCKS5": b"\x05\x01\x00",
    "a name in lower case": head(method="get", target="/healthz"),
    "TRACE": head(method="TRACE", target="/healthz"),
    "CONNECT": head(method="CONNECT", target="127.0.0.1:22"),
    "CONNECT a path": head(method="CONNECT", target="/healthz"),
    "1 KB of method": head(method="G" * 1000, target="/healthz"),
    "absolute form": head(method="GET", target="http://localhost/healthz"),
    "absolute form, elsewhere": head(method="GET", target="http://169.254.169.254/latest/meta-data"),
    "authority": head(method="GET", target="localhost"),
    "star": head(method="GET", target="*"),
    "fragment": head(method="GET", target="/healthz#x"),
    "backslash": head(method="GET", target="\\healthz"),
    "backslash inside": head(method="GET", target="/v1\\healthz"),
    "raw quote": head(method="GET", target='/healthz?"'),
    "raw 0xff": head(method="GET", target="/health\xff"),
    "NUL in the path": head(method="GET", target="/health\0z"),
    "no Host": head(method="GET", target="/healthz", host=None),
    "Host twice": head("Host: evil.example", method="GET", target="/healthz"),
    "Host with a path": head(method="GET", target="/healthz", host="localhost/x"),
    "Host with a user": head(method="GET", target="/healthz", host="localhost@evil.example"),
    "Host with two ports": head(method="GET", target="/healthz", host="localhost:80:90"),
    "Host with a big port": head(method="GET", target="/healthz", host="localhost:99999"),
    "Host list": head(method="GET", target="/healthz", host="localhost, evil.example"),
    "Authorization twice": head("Authorization: Bearer a", "Authorization: Bearer b"),
    "X-API-Key twice": head("X-API-Key: a", "x-api-key: b"),
    "Content-Type twice": head("Content-Type: application/json", "Content-Type: text/plain"),
    "Idempotency-Key twice": head("Idempotency-Key: a", "Idempotency-Key: b"),
    "Origin twice": head("Origin: http://localhost", "Origin: http://evil.example", method="GET"),
    "Expect twice": head("Expect: 100-continue", "Expect: 100-continue"),
    "Expect something": head("Expect: 200-maybe", "Content-Length: 3") + "abc",
    "101 headers": head(*[f"X-{i}: y" for i in range(101)]),
    "10,000 headers": head(*[f"X-{i}: y" for i in range(10000)]),
    "one MB header": head("X: " + "y" * (1 << 20)),
    "64 KB of path": head(method="GET", target="/" + "a" * 65536),
    "64 KB of query": head(method="GET", target="/v1/sandboxes?" + "a" * 65536),
    "a name of 64 KB": head("X" * 65536 + ": y"),
    "no end": "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + "y" * 70000,
    "no line": "G" * 70000,
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_what_can_be_read_in_two_ways_is_refused(server, alice, name):
    """Another request follows at once: it must never be answered."""
    data = SMUGGLED[name]
    data = data if isinstance(data, bytes) else data.encode("latin-1")
    found, closed = ask(alice, data + NEXT.encode())
    refused_once(found, closed, 400, 405, 414, 431, 501, 505)


@pytest.mark.parametrize("name", ["CL.TE", "bare LF", "folding", "NUL in a value", "TLS"])
def test_the_same_byte_by_byte(alice, name):
    data = SMUGGLED[name]
    data = data if isinstance(data, bytes) else data.encode("latin-1")
    with Raw(alice) as raw:
        for at in range(len(data)):
            raw.try_send(data[at:at + 1])
        raw.try_send(NEXT)
        refused_once(*raw.answers(), 400, 405, 431, 501, 505)


def test_the_control_of_the_table(alice):
    """Proper requests, one behind the other, are all answered in order."""
    body = b'{"template":"nonesuch"}'
    proper = (head(f"X-API-Key: {alice.key}", "Content-Type: application/json",
                   f"Content-Length: {len(body)}").encode() + body)
    chunked = (head(f"X-API-Key: {alice.key}", "Content-Type: application/json",
                    "Transfer-Encoding: chunked").encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    with Raw(alice) as raw:
        raw.send(proper + NEXT.encode() + chunked + NEXT.encode())
        found, closed = raw.answers(least=4)
    assert [a.status for a in found] == [400, 200, 400, 200] and not closed
    assert [a.json()["error"]["details"].get("field") for a in found[::2]] == ["template"] * 2


CHUNKS = {
    "17 digits": "1" + "0" * 16 + "\r\n",
    "20 digits": "F" * 20 + "\r\n",
    "leading zeros": "0" * 5000 + "5\r\nhello\r\n0\r\n\r\n",
    "minus": "-1\r\n",
    "plus": "+5\r\nhello\r\n0\r\n\r\n",
    "0x": "0x5\r\nhello\r\n0\r\n\r\n",
    "blank": " 5\r\nhello\r\n0\r\n\r\n",
    "empty": "\r\nhello\r\n0\r\n\r\n",
    "letters": "xyz\r\n",
    "bare LF": "5\nhello\r\n0\r\n\r\n",
    "bare CR": "5\rhello\r\n0\r\n\r\n",
    "longer than it says": "5\r\nhello!\r\n0\r\n\r\n",
    "no CRLF after the data": "5\r\nhello0\r\n\r\n",
    "LF after the data": "5\r\nhello\n0\r\n\r\n",
    "LF at the end": "5\r\nhello\r\n0\n\n",
    "an extension of 1 MB": "5;a=" + "b" * (1 << 20) + "\r\nhello\r\n0\r\n\r\n",
    "a trailer of 1 MB": "5\r\nhello\r\n0\r\nX: " + "y" * (1 << 20) + "\r\n\r\n",
    "100,000 trailers": "0\r\n" + "X: y\r\n" * 100000 + "\r\n",
}


@pytest.mark.parametrize("name", CHUNKS)
def test_chunks_that_are_none(alice, name):
    with Raw(alice) as raw:
        raw.head("PUT", f"/v1/sandboxes/{alice.sandbox}/files?path=chunked", "Transfer-Encoding: chunked")
        raw.try_send(CHUNKS[name])
        raw.try_send(NEXT)
        refused_once(*raw.answers(), 400, 413, 431)
    assert alice.get(f"/v1/sandboxes/{alice.sandbox}/files?path=chunked").status == 404


def test_trailers_say_nothing(alice):
    """A key in a trailer is none; neither is a length."""
    with Raw(alice) as raw:
        raw.head("POST", "/v1/sandboxes", "Transfer-Encoding: chunked",
                 "Content-Type: application/json", key=False)
        raw.send(f"2\r\n{{}}\r\n0\r\nX-API-Key: {alice.key}\r\nContent-Length: 400\r\n\r\n" + NEXT)
        found, _ = raw.answers(least=1)
    assert found[0].status == 401 and [a.status for a in found[1:]] in ([], [200])


def test_bodies_that_nobody_asked_for_are_no_requests(alice):
    """What a GET carries is its body, never the next request."""
    hidden = NEXT.encode()
    for line in (f"Content-Length: {len(hidden)}", "Transfer-Encoding: chunked"):
        body = hidden if "Length" in line else b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)
        found, _ = ask(alice, head(line, method="GET", target="/healthz").encode() + body, least=1)
        assert [a.status for a in found] == [200], found
        # The same on an error, where the body was not read at all.
        found, _ = ask(alice, head(line, target="/nonesuch").encode() + body, least=1)
        assert [a.status for a in found] == [404], found


def test_an_upgrade_to_something_else_is_not_one(alice):
    for lines in (["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"],
                  ["Connection: Upgrade", "Upgrade: TLS/1.0"],
                  ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                   "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]):
        found, _ = ask(alice, head(*lines, method="GET", target="/healthz").encode() + NEXT.encode(),
                       least=1)
        assert all(a.status != 101 for a in found) and found, found


def test_a_thousand_in_a_row_and_away(server, alice):
    """A18: answered in order; a peer that then leaves costs nothing."""
    with Raw(alice) as raw:
        raw.send(NEXT * 1000)
        for _ in range(1000):
            assert raw.answer().status == 200
    for _ in range(20):
        with Raw(alice) as raw:
            raw.send(NEXT * 500)
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    works(alice)


# ---- A13-A19: slow and large ----


def test_slow_heads_hold_nobody_up(server, alice):
    """A14: 300 heads that never end. Others are served meanwhile; the slow ones are told 408 when
    their time is over, also when they go on sending."""
    with Many() as many:
        for _ in range(300):
            raw = many.add(Raw(alice))
            raw.head("GET", "/healthz", "X-A: b", end=False)
        began = time.monotonic()
        works(alice, 5)
        dripping = many.open[:20]
        while time.monotonic() - began < paddock.span(8):
            for raw in dripping:
                raw.try_send("X")
            works(alice, 5)
            time.sleep(0.5)
        for raw in (dripping[0], dripping[-1], many.open[100], many.open[-1]):
            refused_once(*raw.answers(), 408)
        assert time.monotonic() - began < paddock.seconds(20)
    works(alice)


def test_idle_connections_hold_nobody_up(server, alice):
    """A16: more of them than there are threads."""
    with Many() as many:
        for _ in range(2500):
            many.add(Raw(alice))
        works(alice, 5)
        # One that has been idle is as good as new.
        many.open[7].head("GET", "/healthz")
        assert many.open[7].answer().status == 200


@pytest.mark.parametrize("size", [2 * (1 << 20) + 1, 10 << 30, (1 << 63) - 1])
def test_a_json_body_that_is_too_large_is_not_read(alice, size):
    """A19: 413 before the body, also when it was asked for."""
    with Raw(alice) as raw:
        raw.head("POST", "/v1/sandboxes", "Content-Type: application/json", f"Content-Length: {size}")
        began = time.monotonic()
        refused_once(*raw.answers(), 413)
        assert time.monotonic() - began < paddock.seconds(10)
    with Raw(alice) as raw:
        raw.head("POST", "/v1/sandboxes", "Content-Type: application/json", f"Content-Length: {size}",
                 "Expect: 100-continue")
        refused_once(*raw.answers(), 413)


def test_a_chunked_body_that_does_not_end(server, alice):
    """The server stops reading, and its memory does not grow with what is sent."""
    before = rss(server)
    for _ in range(5):
        with Raw(alice) as raw:
            raw.head("POST", "/v1/sandboxes", "Content-Type: application/json",
                     "Transfer-Encoding: chunked")
            piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
            for _ in range(200):
                raw.try_send(piece)
            found, closed = raw.answers()
            assert [a.status for a in found] in ([413], []) and closed
    assert rss(server) - before < 40 << 20
    works(alice)


def test_without_a_key_no_body_is_read(alice):
    """Who has no key cannot make the server wait for a body."""
    with Raw(alice) as raw:
        raw.head("POST", "/v1/sandboxes", "Content-Type: application/json", "Content-Length: 1000000",
                 key=False)
        began = time.monotonic()
        refused_once(*raw.answers(), 401)
        assert time.monotonic() - began < paddock.seconds(5)


def test_content_encodings_are_not_unpacked(alice):
    """A20: no bomb can go off. What is packed is no JSON."""
    import gzip
    packed = gzip.compress(b" " * (64 << 20) + b"{}")
    answer = alice.post("/v1/sandboxes", data=packed, headers={
        "Content-Type": "application/json", "Content-Encoding": "gzip"})
    check_error(answer, (400, 415))


def rss(server):
    with open(f"/proc/{server.daemon()}/status", encoding="ascii") as status:
        return next(int(l.split()[1]) << 10 for l in status if l.startswith("VmRSS"))


# ---- A05-A07, A39-A43: who is asked, and by whom ----


@pytest.mark.parametrize("host", [
    "evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "127.0.0.1.evil.example",
    "evillocalhost", "localhost.", "xn--lcalhost-ofb", "a.b.localhost.evil", "0x7f.1", "2130706433",
    "127.1", "::1", "localhost%00.evil", "localhost_", "-", "."])
def test_names_of_others_are_refused_before_anything_else(server, alice, host):
    """A39, A40: a page whose name was made to lead here has the browser say that name."""
    before = len(alice.get("/v1/sandboxes").json()["sandboxes"])
    for target in ("/healthz", "/metrics", "/v1/sandboxes"):
        with Raw(alice) as raw:
            raw.head("GET", target, host=host)
            answer = raw.answer()
            check_error(answer, (400, 403, 404))
            check_no_leak(answer)
    with Raw(alice) as raw:
        raw.head("POST", "/v1/sandboxes", "Content-Type: application/json", "Content-Length: 2",
                 host=host)
        raw.send("{}")
        assert raw.answer().status in (400, 403, 404)
    assert len(alice.get("/v1/sandboxes").json()["sandboxes"]) == before


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8090"])
def test_the_control_of_hosts(alice, host):
    with Raw(alice) as raw:
        raw.head("GET", "/healthz", host=host)
        assert raw.answer().status == 200


def test_what_proxies_say_is_not_believed(server, alice):
    """A07: no header makes anybody local, somebody else, or another method."""
    with Raw(alice) as raw:
        raw.head("GET", "/v1/sandboxes", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: evil.example",
                 "Forwarded: for=127.0.0.1;host=evil.example", "X-Real-IP: 127.0.0.1",
                 "Connection: X-API-Key, Host", "X-HTTP-Method-Override: DELETE",
                 "X-Original-URL: /healthz", "X-Rewrite-URL: /healthz")
        answer = raw.answer()
    assert answer.status == 200 and alice.sandbox in answer.text
    with Raw(alice) as raw:
        raw.head("GET", "/v1/sandboxes", "X-Original-URL: /healthz", key=False)
        assert raw.answer().status == 401
    answer = alice.post(f"/v1/sandboxes/{alice.sandbox}?_method=DELETE")
    check_error(answer, 405)
    assert alice.get(f"/v1/sandboxes/{alice.sandbox}").json()["state"] == "running"


ORIGINS = ["https://evil.example", "null", "http://localhost.evil.example", "file://",
           "http://localhost:1", "https://localhost"]


@pytest.mark.parametrize("origin", ORIGINS)
def test_pages_of_others_learn_nothing(alice, origin):
    """A41, A42: nothing lets a page read an answer, no preflight succeeds, nothing is a cookie."""
    for method, target in (("GET", "/v1/sandboxes"), ("GET", "/healthz"), ("GET", "/docs"),
                           ("OPTIONS", "/v1/sandboxes"), ("GET", "/nonesuch"), ("GET", "/metrics")):
        with Raw(alice) as raw:
            raw.head(method, target, f"Origin: {origin}", "Access-Control-Request-Method: POST",
                     "Access-Control-Request-Headers: x-api-key, content-type",
                     "Access-Control-Request-Private-Network: true", "Cookie: a=b")
            answer = raw.answer()
        assert method != "OPTIONS" or answer.status == 405
        for name in answer.headers:
            assert not name.startswith("access-control-"), answer
            assert name not in ("set-cookie", "location", "refresh"), answer


def test_a_form_cannot_be_an_order(alice):
    """A41: what a form or a fetch without preflight can send is not taken for JSON."""
    before = len(alice.get("/v1/sandboxes").json()["sandboxes"])
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                 "text/plain; application/json", "application/jsonp", "text/json", ""):
        answer = alice.post("/v1/sandboxes", data=b"{}", headers={"Content-Type": kind})
        check_error(answer, (400, 415))
        answer = alice.post(f"/v1/sandboxes/{alice.sandbox}/exec", data=b'{"command":"touch form"}',
                            headers={"Content-Type": kind})
        check_error(answer, (400, 415))
    assert len(alice.get("/v1/sandboxes").json()["sandboxes"]) == before
    assert execute(alice, "test -e form")["exit_code"] == 1


def test_a_websocket_of_another_page_is_refused(alice):
    """A43, with its control."""
    made = alice.post(f"/v1/sandboxes/{alice.sandbox}/processes", json={"command": "sleep 60"})
    process = made.json()["process_id"]
    target = f"/v1/sandboxes/{alice.sandbox}/processes/{process}/attach"
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
               "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    for origin in ORIGINS:
        with Raw(alice) as raw:
            raw.head("GET", target, *upgrade, f"Origin: {origin}")
            check_error(raw.answer(), 403)
    with Raw(alice) as raw:
        raw.head("GET", target, *upgrade, key=False)
        check_error(raw.answer(), 401)
    for query in (f"?api_key={alice.key}", f"?key={alice.key}", f"?x-api-key={alice.key}",
                  f"?access_token={alice.key}"):
        with Raw(alice) as raw:
            raw.head("GET", target + query, *upgrade, key=False)
            check_error(raw.answer(), (400, 401))
    for lines in ([], [f"Origin: http://{alice.host}:{alice.port}"]):
        with Raw(alice) as raw:
            raw.head("GET", target, *upgrade, *lines)
            raw.sock.settimeout(paddock.seconds(20))
            assert raw.sock.recv(12) == b"HTTP/1.1 101"
    alice.delete(f"/v1/sandboxes/{alice.sandbox}/processes/{process}")


# ---- A06: paths ----


@pytest.mark.parametrize("path", [
    "/v1/%2e%2e/healthz", "/v1/../healthz", "/v1/./sandboxes", "//v1/sandboxes", "/v1//sandboxes",
    "/v1/sandboxes/", "/v1/sandboxes/%2f", "/v1/sandboxes/{id}/%2e%2e", "/v1/sandboxes/{id}/..",
    "/v1/sandboxes/{id}%2fexec", "/v1/sandboxes/{id}%00", "/v1/sandboxes/{id}%0a",
    "/v1/sandboxes/{id}%20", "/v1/sandboxes/%252e%252e", "/v1/sandboxes/{id};a=b", "/V1/sandboxes",
    "/v1/sandboxes/{ID}", "/v1/sandboxes/%c0%ae%c0%ae", "/v1/sandboxes/%ff", "/v1/sandboxes/%",
    "/v1/sandboxes/%2", "/v1/sandboxes/%zz", "/v1/sandboxes/{id}/files/../exec", "/healthz/",
    "/healthz/..", "/healthz%2f..%2fv1", "/v1/sandboxes/{id}/processes/%2e%2e", "/v1/sandboxes/..%2f",
    "/v1/sandboxes/{id}/processes/1%2foutput", "/v1/sandboxes/{id}/ports/80%2f..", "/.", "/..", "/console",
    "/console/", "/console/..", "/console/%2e%2e/v1/sandboxes", "/console/../healthz", "//"])
def test_paths_are_read_once_and_as_they_are(alice, path):
    """Neither with a key nor without one does a crooked path lead anywhere."""
    path = path.replace("{id}", alice.sandbox).replace("{ID}", alice.sandbox.upper())
    for key in (True, False):
        for method in ("GET", "POST", "DELETE"):
            with Raw(alice) as raw:
                raw.head(method, path, "Content-Length: 0", key=key)
                answer = raw.answer()
            check_error(answer, (400, 401, 404, 405))
            check_no_leak(answer)
    assert alice.get(f"/v1/sandboxes/{alice.sandbox}").json()["state"] == "running"


def test_an_id_can_be_written_with_escapes(alice):
    """The control: decoding happens, once."""
    escaped = "".join(f"%{ord(c):02x}" for c in alice.sandbox)
    assert alice.get(f"/v1/sandboxes/{escaped}").json()["id"] == alice.sandbox


# ---- header injection, A55, A58 ----


def test_nothing_that_was_sent_becomes_a_header(server, alice):
    """Values that are given back are given back in JSON; ids of requests are the server's own."""
    evil = "x\r\nSet-Cookie: a=b\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    with Raw(alice) as raw:
        raw.head("GET", "/v1/sandboxes", "X-Request-Id: forged-by-me", "X-Correlation-Id: forged")
        answer = raw.answer()
    assert "forged" not in str(dict(answer.headers)) + answer.text
    sandbox = create(alice, metadata={"name": evil, "\x1b[2J": "\u2028"}, user_id="u\u001b[31m",
                     thread_id=evil)
    shown = alice.get(f"/v1/sandboxes/{sandbox}")
    assert shown.json()["metadata"] == {"name": evil, "\x1b[2J": "\u2028"}
    assert "set-cookie" not in shown.headers and b"\r\n" not in shown.body and b"\x1b" not in shown.body
    listed = alice.get("/v1/sandboxes?metadata.name=" + "x%0D%0ASet-Cookie:%20a=b%0D%0A%0D%0A")
    assert "set-cookie" not in listed.headers
    alice.delete(f"/v1/sandboxes/{sandbox}")


@pytest.mark.parametrize("name", ['a".html', "a\r\nSet-Cookie: a=b", "a\nb", "\x1b[2J.svg", "a;b.html",
                                  "../../x.html", "ü.html", "a\u2028b"])
def test_names_of_files_stay_names(alice, name):
    """A58: a file is downloaded, never shown; its name is no header."""
    from urllib.parse import quote
    base = f"/v1/sandboxes/{alice.sandbox}/files?path=" + quote("names/" + name.replace("../", ""), safe="")
    assert alice.put(base + "&mkdirs=true", data=b"<script>alert(1)</script>").status in (200, 201)
    got = alice.get(base)
    assert got.status == 200 and got.body == b"<script>alert(1)</script>"
    assert "set-cookie" not in got.headers
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers.get("Content-Disposition", "attachment").startswith("attachment")


def test_output_is_no_page(alice):
    """Raw output of a process is downloaded, never shown."""
    result = execute(alice, "printf '<script>alert(1)</script>'")
    got = alice.get(f"/v1/sandboxes/{alice.sandbox}/processes/{result['process_id']}/output")
    assert got.status == 200 and got.body == b"<script>alert(1)</script>"
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert got.headers["X-Content-Type-Options"] == "nosniff"
