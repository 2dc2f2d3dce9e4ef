"""Ports of a sandbox: what listens, the proxy by path and by host, signed links."""

import base64
import hashlib
import json
import os
import pathlib
import signal
import threading
import time
from urllib.parse import quote, urlsplit

import pytest

from paddock_testing.run import seconds, wait_for
from paddock_testing.server import Server, check_error
from ws import BINARY, CLOSE, Raw, WebSocket

APP = pathlib.Path(__file__).with_name("port_app.py")


class Web:
    """An application in a sandbox, and short ways to it."""

    def __init__(self, api, id):
        self.api, self.id = api, id
        self.base = f"/v1/sandboxes/{id}"
        assert api.put(f"{self.base}/files?path=app.py", data=APP.read_bytes()).status in (200, 201)
        made = api.post(f"{self.base}/processes", json={"argv": ["python3", "-u", "app.py"]})
        assert made.status == 201, made.body
        wait_for(lambda: {8000, 8001} <= {p["port"] for p in self.ports()}, 30,
                 "the application listens")

    def ports(self):
        answer = self.api.get(f"{self.base}/ports")
        assert answer.status == 200, answer.body
        return answer.json()["ports"]

    def path(self, target="/", port=8000):
        return f"{self.base}/ports/{port}{target}"

    def host(self, port=8000):
        return f"{port}-{self.id}.localhost:{self.api.port}"

    def ask(self, method, target, headers=(), body=b"", port=8000, by_host=False, **more):
        """Status, headers and body, over a connection of its own."""
        with Raw(self.api, timeout=60) as raw:
            if by_host:
                raw.request(method, target, headers, body, host=self.host(port), **more)
            else:
                raw.request(method, self.path(target, port), headers, body, **more)
            if method == "HEAD":
                return *raw.head(), b""
            return raw.answer()

    def echo(self, method="GET", target="/echo", headers=(), body=b"", **more):
        """What the application saw."""
        status, _, answer = self.ask(method, target, headers, body, **more)
        assert status == 200, answer
        return json.loads(answer)

    def parrot(self, data, then="close", **more):
        target = "/" + base64.urlsafe_b64encode(data).decode()
        return self.ask("GET", f"{target}?then={then}", port=8001, **more)

    def preview(self, port=8000, host=None, **body):
        with Raw(self.api) as raw:
            raw.request("POST", self.path("/preview", port), [("Content-Type", "application/json")],
                        json.dumps(body).encode(), host=host)
            status, _, answer = raw.answer()
            return status, json.loads(answer)


def values(headers, name):
    return [value for key, value in headers if key.lower() == name.lower()]


@pytest.fixture(scope="module")
def web(server):
    api = server.client()
    made = api.post("/v1/sandboxes", json={})
    assert made.status == 201, made.body
    id = made.json()["id"]
    yield Web(api, id)
    api.delete(f"/v1/sandboxes/{id}")
    api.close()


# ---- what listens ----


def test_ports_are_listed_with_who_listens(web):
    rows = {p["port"]: p for p in web.ports()}
    assert rows[8000]["address"] == "0.0.0.0" and rows[8001]["address"] == "127.0.0.1"
    assert rows[8000]["command"].startswith("python3") and rows[8000]["pid"] > 1
    assert set(rows[8000]) == {"port", "address", "pid", "command"}


def test_a_fresh_sandbox_listens_nowhere(api, sandbox):
    assert api.get(f"/v1/sandboxes/{sandbox}/ports").json() == {"ports": []}


# ---- passing on ----


@pytest.mark.parametrize("by_host", [False, True])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_methods_and_bodies_pass(web, method, by_host):
    body = b"" if method in ("GET", "OPTIONS") else os.urandom(200_000)
    seen = web.echo(method, "/a/b%2Fc?x=1&y=%20", body=body, by_host=by_host)
    assert seen["method"] == method and seen["target"] == "/a/b%2Fc?x=1&y=%20"
    assert seen["size"] == len(body) and seen["sha256"] == hashlib.sha256(body).hexdigest()


def test_head_has_the_length_and_no_body(web):
    status, headers, _ = web.ask("HEAD", "/status?s=200")
    assert status == 200 and values(headers, "Content-Length") == ["0"]
    status, headers, _ = web.ask("HEAD", "/big?n=12345")
    assert values(headers, "Content-Length") == ["12345"]


def test_a_connection_serves_many_requests(web):
    with Raw(web.api) as raw:
        for i in range(5):
            raw.request("POST", web.path(f"/echo?{i}"), body=b"x" * i)
            status, _, body = raw.answer()
            assert status == 200 and json.loads(body)["target"] == f"/echo?{i}"


@pytest.mark.parametrize("size", [0, 1, 65536, 20_000_000])
@pytest.mark.parametrize("eof", ["", "&eof"])
def test_large_answers(web, size, eof):
    status, headers, body = web.ask("GET", f"/big?n={size}{eof}{'=1' if eof else ''}")
    assert status == 200 and len(body) == size and body == (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert bool(values(headers, "Content-Length")) == (not eof)


def test_a_large_upload(web):
    body = os.urandom(1 << 20) * 24
    seen = web.echo("PUT", body=body)
    assert seen["size"] == len(body) and seen["sha256"] == hashlib.sha256(body).hexdigest()


def test_a_chunked_upload(web):
    pieces = [os.urandom(n) for n in (1, 5000, 70000)]
    with Raw(web.api) as raw:
        raw.request("POST", web.path("/echo"), [("Transfer-Encoding", "chunked")])
        for piece in pieces:
            raw.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        raw.send(b"0\r\n\r\n")
        seen = json.loads(raw.answer()[2])
    assert seen["sha256"] == hashlib.sha256(b"".join(pieces)).hexdigest()


def test_expect_continue(web):
    with Raw(web.api) as raw:
        raw.request("POST", web.path("/echo"), [("Expect", "100-continue"), ("Content-Length", "3")])
        assert raw.head()[0] == 100
        raw.send(b"abc")
        seen = json.loads(raw.answer()[2])
        assert seen["size"] == 3 and not values(seen["headers"], "Expect")


def test_both_directions_at_once(web):
    """A piece of the request is answered before the next one is sent."""
    with Raw(web.api) as raw:
        raw.request("POST", web.path("/duplex"), [("Transfer-Encoding", "chunked")])
        raw.send(b"3\r\none\r\n")
        assert raw.head()[0] == 200
        for sent, next_one in ((b"ONE", b"two"), (b"TWO", b"six"), (b"SIX", None)):
            size = int(raw.until(b"\r\n"), 16)
            assert raw.exactly(size) == sent and raw.exactly(2) == b"\r\n"
            raw.send(b"3\r\n%s\r\n" % next_one if next_one else b"0\r\n\r\n")
        assert raw.until(b"\r\n") == b"0"


def test_a_server_that_answers_before_it_has_read(web):
    began = time.monotonic()
    with Raw(web.api, timeout=20) as raw:
        raw.request("PUT", web.path("/refuse"), [("Content-Length", str(1 << 30))])
        raw.send(b"x" * 500_000)
        status, _, body = raw.answer()
        assert status == 413 and body == b"no"
    assert time.monotonic() - began < seconds(10)


def test_events_come_when_they_are_sent(web):
    """The next one is not sent before this one is read."""
    with Raw(web.api) as raw:
        raw.request("GET", web.path("/events?wait=/tmp/read"))
        assert raw.head()[0] == 200
        for i in range(3):
            raw.until(b"data: %d\n\n" % i)
            assert web.api.put(f"{web.base}/files?path=/tmp/read{i}", data=b"").status in (200, 201)


def test_a_client_that_leaves_is_noticed(web):
    raw = Raw(web.api)
    raw.request("GET", web.path("/events"))
    raw.head()
    raw.sock.close()
    assert web.echo()["method"] == "GET"


def test_twenty_at_once(web):
    results = []
    def one(i):
        results.append(web.echo(target=f"/n?{i}")["target"] == f"/n?{i}")
    threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [True] * 20


# ---- what is not passed on ----


def test_the_key_and_the_cookies_of_the_api_stay_here(web):
    key = web.api.key
    seen = web.echo(headers=[("Authorization", f"Bearer {key}"), ("Cookie", "session=secret"),
                             ("X-Forwarded-For", "6.6.6.6"), ("Forwarded", "for=6.6.6.6"),
                             ("X-Real-IP", "6.6.6.6"), ("X-Forwarded-Host", "evil.example"),
                             ("Connection", "X-Secret, Host, X-API-Key"), ("X-Secret", "1"),
                             ("X-Mine", "2"), ("TE", "trailers"), ("Proxy-Authorization", "x")])
    text = json.dumps(seen)
    assert key not in text and "secret" not in text and "6.6.6.6" not in text and "evil" not in text
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["x-mine"] == "2" and headers["host"] == "localhost:8000"
    for name in ("authorization", "x-api-key", "x-secret", "te", "proxy-authorization", "cookie"):
        assert name not in headers, name
    assert headers["x-forwarded-for"] == "127.0.0.1" and headers["x-forwarded-proto"] == "http"
    assert headers["x-forwarded-prefix"] == web.path("")
    assert headers["x-forwarded-host"] == f"{web.api.host}:{web.api.port}"
    assert len(headers) == len(seen["headers"]), "a header came twice"


def test_by_host_the_program_sees_its_host_and_its_cookies(web):
    seen = web.echo(by_host=True, headers=[("Cookie", "a=1; paddock_preview=x; b=2")])
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["host"] == web.host() and headers["cookie"] == "a=1; b=2"
    assert web.api.key not in json.dumps(seen) and "x-forwarded-prefix" not in headers


HOSTILE = ["Set-Cookie: s=1; Domain=.localhost; Path=/", "Set-Cookie: paddock_preview=stolen",
           "Clear-Site-Data: \"cookies\"", "X-Accel-Redirect: /etc/passwd", "X-Sendfile: /etc/passwd",
           "Service-Worker-Allowed: /", "Alt-Svc: h3=\"evil:443\"", "X-Fine: yes",
           "Strict-Transport-Security: max-age=1", "Content-Security-Policy: default-src *"]


def hostile(web, **more):
    query = "&".join("h=" + quote(h) for h in HOSTILE)
    status, headers, _ = web.ask("GET", "/headers?" + query, **more)
    assert status == 200
    return headers


def test_by_path_nothing_holds_for_the_whole_origin(web):
    headers = hostile(web)
    assert values(headers, "X-Fine") == ["yes"]
    for name in ("Set-Cookie", "Clear-Site-Data", "X-Accel-Redirect", "X-Sendfile", "Alt-Svc",
                 "Service-Worker-Allowed", "Strict-Transport-Security"):
        assert not values(headers, name), name
    policies = values(headers, "Content-Security-Policy")
    assert any(p.startswith("sandbox") and "allow-same-origin" not in p for p in policies), policies


def test_by_host_cookies_are_held_to_the_host(web):
    headers = hostile(web, by_host=True)
    assert values(headers, "Set-Cookie") == ["s=1; Path=/"]
    assert not values(headers, "Clear-Site-Data") and not values(headers, "X-Accel-Redirect")
    assert values(headers, "Content-Security-Policy") == ["default-src *"]


@pytest.mark.parametrize("to,seen", [
    ("/login?a=1", "{prefix}/login?a=1"), ("http://localhost:8000/x", "{prefix}/x"),
    ("http://127.0.0.1:8000/x", "{prefix}/x"), ("//evil.example/", "//evil.example/"),
    ("http://169.254.169.254/", "http://169.254.169.254/"), ("relative", "relative"),
    ("http://localhost:80000/", "http://localhost:80000/"), ("{prefix}/y", "{prefix}/y"),
    ("file:///etc/passwd", "file:///etc/passwd")])
def test_redirects_are_passed_on_and_not_followed(web, to, seen):
    prefix = web.path("")
    target = "/status?s=302&to=" + quote(to.format(prefix=prefix), safe="")
    status, headers, _ = web.ask("GET", target)
    assert status == 302 and values(headers, "Location") == [seen.format(prefix=prefix)]
    status, headers, _ = web.ask("GET", target, by_host=True)
    assert status == 302 and values(headers, "Location") == [to.format(prefix=prefix)]


# ---- servers that are not there, or not servers ----


def failed(answer, status, *words):
    assert answer[0] == status, answer
    error = json.loads(answer[2])["error"]
    assert error["code"] == {502: "bad_gateway", 504: "timeout"}[status]
    for word in words:
        assert word in error["message"], error
    return error


@pytest.mark.parametrize("by_host", [False, True])
def test_nothing_listens(web, by_host):
    failed(web.ask("GET", "/", port=9, by_host=by_host), 502, "nothing listens on port 9")


GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("data,then,words", [
    (b"", "close", "without an answer"),
    (b"SSH-2.0-OpenSSH_9\r\n", "stay", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Le", "close", "in the middle"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 999 Hm\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 20 Hm\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/2 200 OK\r\n\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\n", "flood", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"\r\n", "close", "no HTTP"),
    (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "stay", "nobody asked"),
    (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "stay", "no HTTP"),
    (b"", "interim", "interim"),
])
def test_answers_that_are_none(web, data, then, words):
    failed(web.parrot(data, then), 502, words)
    assert web.parrot(GOOD)[2] == b"ok"


@pytest.mark.parametrize("data", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nhello",
])
def test_answers_that_break_off_are_broken_off(web, data):
    with pytest.raises(EOFError):
        print(web.parrot(data))
    assert web.parrot(GOOD)[2] == b"ok"


def test_what_follows_an_answer_is_nobodys(web):
    """A second answer behind the first one must not become that of the next request."""
    two = GOOD + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    target = "/" + base64.urlsafe_b64encode(two).decode() + "?then=stay"
    with Raw(web.api) as raw:
        raw.request("GET", web.path(target, 8001))
        raw.request("GET", web.path("/echo"))
        assert raw.answer()[2] == b"ok"
        status, _, body = raw.answer()
        assert status == 200 and json.loads(body)["target"] == "/echo"


def test_an_interim_answer_is_skipped(web):
    assert web.parrot(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + GOOD)[2] == b"ok"


@pytest.mark.parametrize("data,status,body", [
    (b"HTTP/1.0 200 OK\r\n\r\nall of it", 200, b"all of it"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
    (b"HTTP/1.1 599 Odd\r\nContent-Length: 0\r\n\r\n", 599, b""),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nTrailer: x\r\n\r\n", 200, b"ok"),
])
def test_answers_that_are_odd_and_fine(web, data, status, body):
    answer = web.parrot(data)
    assert answer[0] == status and answer[2] == body
    assert not values(answer[1], "Trailer")


def test_smuggling_through_the_request_is_refused(web):
    for extra in ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: xchunked\r\n",
                  "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: +5\r\n"):
        with Raw(web.api) as raw:
            raw.send(f"POST {web.path('/echo')} HTTP/1.1\r\nHost: {web.api.host}\r\n"
                     f"X-API-Key: {web.api.key}\r\n{extra}\r\n0\r\n\r\nGET /")
            assert raw.head()[0] in (400, 501), extra


# ---- ways in ----


@pytest.mark.parametrize("port,status", [("0", 400), ("65536", 400), ("-1", 400), ("x", 400), ("80a", 400),
                                         ("99999999999999999999", 400)])
def test_wrong_ports(web, port, status):
    assert web.ask("GET", "/", port=port)[0] == status


@pytest.mark.parametrize("host", ["0-{id}", "65536-{id}", "x-{id}", "8000-{id}x", "8000{id}", "8000-{id}.x",
                                  "-{id}", "{id}", "08000-{id}", "8000-"])
def test_wrong_host_names(web, host):
    with Raw(web.api) as raw:
        raw.request("GET", "/", host=host.format(id=web.id) + ".localhost")
        assert raw.answer()[0] in (400, 403, 404)


def test_a_host_name_of_somebody_else(web):
    for host in (f"8000-{web.id}.evil.example", f"8000-{web.id}.localhost.evil.example"):
        with Raw(web.api) as raw:
            raw.request("GET", "/", host=host)
            assert raw.answer()[0] in (403, 421)


@pytest.mark.parametrize("by_host", [False, True])
def test_a_key_is_needed(web, by_host):
    status, headers, body = web.ask("GET", "/echo", key=False, by_host=by_host)
    assert status == 401 and json.loads(body)["error"]["code"] == "unauthenticated"
    assert web.ask("GET", "/echo", [("X-API-Key", "e2b_" + "0" * 40)], key=False, by_host=by_host)[0] == 401


def test_a_sandbox_that_is_not_there(web):
    other = "a" * 20
    with Raw(web.api) as raw:
        raw.request("GET", f"/v1/sandboxes/{other}/ports/8000/")
        assert raw.answer()[0] == 404
        raw.request("GET", "/", host=f"8000-{other}.localhost")
        assert raw.answer()[0] == 404


# ---- signed links ----


def token_of(web, port=8000, **body):
    status, answer = web.preview(port, **body)
    assert status == 200, answer
    return answer["url"].split("paddock_preview=")[1]


@pytest.mark.parametrize("by_host", [False, True])
def test_a_link_works_without_a_key(web, by_host):
    host = "localhost" if by_host else web.api.host
    status, answer = web.preview(host=f"{host}:{web.api.port}", expires_in_s=60)
    assert status == 200 and answer["expires_at"].endswith("Z")
    url = urlsplit(answer["url"])
    assert (url.netloc, url.path) == ((web.host(), "/") if by_host else
                                      (f"{web.api.host}:{web.api.port}", web.path("/")))
    with Raw(web.api) as raw:
        raw.request("GET", f"{url.path}echo?a=1&{url.query}&b=2", host=url.netloc, key=False)
        status, headers, body = raw.answer()
    assert status == 200
    seen = json.loads(body)
    assert seen["target"] == "/echo?a=1&b=2" and "paddock_preview" not in json.dumps(seen)


@pytest.mark.parametrize("by_host", [False, True])
def test_a_token_opens_one_port_of_one_sandbox_for_a_while(web, sandbox, by_host):
    token = token_of(web)
    def status(token, port=8000, id=web.id):
        with Raw(web.api) as raw:
            if by_host:
                raw.request("GET", f"/echo?paddock_preview={token}", key=False,
                            host=f"{port}-{id}.localhost")
            else:
                raw.request("GET", f"/v1/sandboxes/{id}/ports/{port}/echo?paddock_preview={token}", key=False)
            return raw.answer()[0]
    assert status(token) == 200
    assert status(token, port=8001) == 401 and status(token, id=sandbox) == 401
    for bad in ("", "x", token[:-1], token + "0", token.upper() if token.upper() != token else "x",
                token.replace(token[5], "0" if token[5] != "0" else "1", 1)):
        assert status(bad) == 401, bad
    for _ in range(20):  # until one is used in its time
        began = time.monotonic()
        short = token_of(web, expires_in_s=1)
        seen = status(short)
        if time.monotonic() - began < 0.9:
            break
    assert seen == 200
    wait_for(lambda: status(short) == 401, 10, "its time is over")


def test_a_token_opens_nothing_else(web):
    token = token_of(web)
    for path in (web.base, f"{web.base}/ports", f"{web.base}/files?path=app.py", "/v1/sandboxes"):
        with Raw(web.api) as raw:
            raw.request("GET", path + ("&" if "?" in path else "?") + f"paddock_preview={token}", key=False)
            assert raw.answer()[0] == 401, path
    with Raw(web.api) as raw:
        raw.request("POST", f"{web.path('/preview')}?paddock_preview={token}", key=False)
        assert raw.answer()[0] == 401


def test_an_escaped_parameter_is_removed_too(web):
    token = token_of(web)
    seen = web.echo(target=f"/echo?%70addock_preview={token}&z=1", key=False)
    assert seen["target"] == "/echo?z=1"


def test_a_browser_gets_a_cookie_and_a_clean_address(web):
    token = token_of(web)
    navigate = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Site", "none")]
    status, headers, _ = web.ask("GET", f"/page?a=1&paddock_preview={token}", navigate, by_host=True, key=False)
    assert status == 303 and values(headers, "Location") == ["/page?a=1"]
    cookie = values(headers, "Set-Cookie")[0]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Domain" not in cookie
    pair = cookie.split(";")[0]
    same = [("Cookie", pair), ("Sec-Fetch-Site", "same-origin")]
    assert web.ask("GET", "/echo", same, by_host=True, key=False)[0] == 200
    seen = web.echo(headers=same, by_host=True, key=False)
    assert token not in json.dumps(seen)
    # By path there are no cookies.
    assert web.ask("GET", "/echo", same, key=False)[0] == 401
    # Pages of others cannot use it; a link on them can.
    for more, wanted in (([("Sec-Fetch-Site", "cross-site")], 401), ([("Sec-Fetch-Site", "same-site")], 401),
                         ([("Origin", "http://evil.example")], 401), ([("Origin", "null")], 401),
                         ([("Origin", "http://" + web.host(8001))], 401),
                         ([("Origin", "http://" + web.host())], 200),
                         ([("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")], 200)):
        assert web.ask("GET", "/echo", [("Cookie", pair), *more], by_host=True, key=False)[0] == wanted, more
    status, headers, _ = web.ask("GET", f"//evil.example/?paddock_preview={token}", navigate, by_host=True, key=False)
    assert status == 303 and not values(headers, "Location")[0].startswith("//")


def test_a_frame_gets_a_cookie_of_its_own(web):
    """A Lax cookie is not sent in a frame of another site's page: a partitioned one is."""
    framed = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Dest", "iframe")]
    status, headers, _ = web.ask("GET", f"/page?paddock_preview={token_of(web)}", framed, by_host=True, key=False)
    assert status == 303
    pair, *attributes = values(headers, "Set-Cookie")[0].split("; ")
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=None", "Secure", "Partitioned"}

    # What the framed page itself asks for, and the frame's own address, once more; nobody else's pages.
    for more, wanted in (([("Sec-Fetch-Site", "same-origin")], 200), (framed, 200),
                         ([("Sec-Fetch-Site", "cross-site")], 401), ([("Origin", "http://evil.example")], 401)):
        assert web.ask("GET", "/echo", [("Cookie", pair), *more], by_host=True, key=False)[0] == wanted, more


@pytest.mark.parametrize("by, host", [("host", True), ("path", False), ("either", False), (None, False)])
def test_which_form_a_link_has(web, by, host):
    """Asked at 127.0.0.1, where names below localhost are not used unless that is said."""
    body = {} if by is None else {"by": by}
    link = web.api.post(web.path("/preview"), json=body)
    assert link.status == 200, link
    assert (".localhost:" in link.json()["url"]) == host, link
    check_error(web.api.post(web.path("/preview"), json={"by": "magic"}), 400, "invalid", "by",
                says="host")


def test_the_token_in_a_header(web):
    token = token_of(web)
    seen = web.echo(headers=[("X-Paddock-Preview", token), ("Authorization", "Basic abc"),
                             ("Referer", f"http://x/?paddock_preview={token}")], by_host=True, key=False)
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["authorization"] == "Basic abc" and token not in json.dumps(seen)
    seen = web.echo(headers=[("X-Paddock-Preview", token), ("Authorization", f"Bearer {web.api.key}")],
                    by_host=True, key=False)
    assert web.api.key not in json.dumps(seen)


@pytest.mark.parametrize("body", [{"expires_in_s": 0}, {"expires_in_s": 604801}, {"expires_in_s": "1"}, {"x": 1},
                                  {"expires_in_s": -1}])
def test_wrong_lives(web, body):
    status, answer = web.preview(**body)
    assert status == 400 and answer["error"]["details"]["field"] == list(body)[0]


def test_a_preview_without_a_body(web):
    with Raw(web.api) as raw:
        raw.request("POST", web.path("/preview"), [("Content-Length", "0")])
        assert raw.answer()[0] == 200


# ---- WebSockets ----


@pytest.mark.parametrize("by_host", [False, True])
def test_a_websocket_passes(web, by_host):
    target, host = ("/ws", web.host()) if by_host else (web.path("/ws"), None)
    with WebSocket(web.api, target, host=host, headers=[("Sec-WebSocket-Protocol", "echo")]) as ws:
        assert ws.status == 101 and ("Sec-WebSocket-Protocol", "echo") in ws.headers
        for data in (b"x", b"y" * 200, os.urandom(300_000)):
            ws.send(data)
            assert ws.next() == (BINARY, data)
        ws.raw.send(ws.frame(CLOSE, b"\x03\xe8"))
        assert ws.next() == (CLOSE, b"\x03\xe8")
        assert not ws.raw.more()


def test_a_websocket_with_a_token(web):
    token = token_of(web)
    with WebSocket(web.api, web.path(f"/ws?paddock_preview={token}"), key=False) as ws:
        ws.send(b"hello")
        assert ws.next() == (BINARY, b"hello")
    with WebSocket(web.api, web.path("/ws"), key=False) as ws:
        assert ws.status == 401


def test_a_websocket_with_a_wrong_proof(web):
    said = (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n")
    target = "/" + base64.urlsafe_b64encode(said).decode() + "?then=stay"
    with WebSocket(web.api, web.path(target, 8001)) as ws:
        assert ws.status == 502 and ws.error()["code"] == "bad_gateway"


def test_a_websocket_that_is_refused(web):
    with WebSocket(web.api, web.path("/echo")) as ws:
        assert ws.status == 200


# ---- whose it is, and how it is set up ----


def test_another_tenant_sees_nothing(server, web):
    other = server.client(server.make_key("other"))
    assert other.get(f"{web.base}/ports").status == 404
    assert other.get(web.path("/echo")).status == 404
    assert other.post(web.path("/preview")).status == 404
    with Raw(other) as raw:
        raw.request("GET", "/echo", host=web.host())
        assert raw.answer()[0] == 404


def test_a_key_that_is_revoked_ends_what_it_began(server, web):
    client = server.client(server.make_key())
    with WebSocket(client, web.path("/ws")) as ws, Raw(client) as raw, \
            WebSocket(web.api, web.path("/ws")) as other:
        raw.request("GET", web.path("/" + base64.urlsafe_b64encode(
            b"HTTP/1.1 200 OK\r\n\r\nfirst").decode() + "?then=stay", 8001))
        raw.until(b"first")
        ws.send(b"x")
        assert ws.next() == (BINARY, b"x")
        server.run("key", "revoke", hashlib.sha256(client.key.encode()).hexdigest()[:16])
        began = time.monotonic()
        assert not ws.raw.more()
        raw.rest()
        assert time.monotonic() - began < seconds(5)
        other.send(b"still here")
        assert other.next() == (BINARY, b"still here")


def test_a_domain_of_its_own():
    with Server({"domain": "box.example", "pool_min": 0, "pool_max": 0}) as server:
        api = server.client()
        id = api.post("/v1/sandboxes", json={}).json()["id"]
        web = Web(api, id)
        status, answer = web.preview()
        url = urlsplit(answer["url"])
        assert status == 200 and url.netloc == f"8000-{id}.box.example:{api.port}"
        for host, wanted in ((url.netloc, 200), (f"8000-{id}.BOX.example", 200), (web.host(), 403),
                             (f"8000-{id}.evil.box.example", 404)):
            with Raw(api) as raw:
                raw.request("GET", "/echo?" + url.query, host=host, key=False)
                assert raw.answer()[0] == wanted, host


def test_a_stopping_server_waits_for_answers_and_not_for_sockets():
    with Server({"pool_min": 0, "pool_max": 0}) as server:
        web = Web(server.client(), server.client().post("/v1/sandboxes", json={}).json()["id"])
        with WebSocket(web.api, web.path("/ws")) as ws, Raw(web.api) as raw:
            raw.request("GET", web.path("/events"))
            raw.until(b"data: 0\n\n")
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            raw.until(b"data: 2\n\n")
            assert not ws.raw.more()
            server.wait()
            assert time.monotonic() - began < seconds(8)


# ---- the sandbox's state ----


def test_a_paused_or_deleted_sandbox(api):
    id = api.post("/v1/sandboxes", json={}).json()["id"]
    base = f"/v1/sandboxes/{id}"
    assert api.post(f"{base}/pause").status == 200
    answer = api.get(f"{base}/ports/8000/")
    assert answer.status == 409 and answer.json()["error"]["code"] == "paused"
    assert api.get(f"{base}/ports").status == 409
    assert api.delete(base).status == 204
    assert api.get(f"{base}/ports/8000/").status in (404, 410)


def test_http_server_of_python(api, sandbox):
    base = f"/v1/sandboxes/{sandbox}"
    assert api.put(f"{base}/files?path=site/a/index.html&mkdirs=true", data=b"<h1>hi").status == 201
    api.post(f"{base}/processes", json={"command": "cd site && python3 -m http.server 8080"})
    answer = wait_for(lambda: (a := api.get(f"{base}/ports/8080/a/")).status != 502 and a, 30,
                      "it listens")
    assert answer.status == 200 and answer.body == b"<h1>hi"
    answer = api.get(f"{base}/ports/8080/missing")
    assert answer.status == 404 and b"File not found" in answer.body
