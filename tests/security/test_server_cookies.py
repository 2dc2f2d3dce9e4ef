"""Wall: the cookie that opens a preview. Each preview is a host below one domain, and browsers let a
page set cookies for that domain, so for the hosts of other sandboxes too. `Jar` keeps cookies as a
browser does (RFC 6265 with the prefixes of its revision); a page of Bob's preview plants cookies in it,
and then the same browser goes to Alice's.

The control of each attack is that the planted cookie arrives: Alice's program is sent it, unless it has
the name of the preview's own."""

import json
import re

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Response
from paddock_testing.tls import DOMAIN, BothServer

APP = rb'''
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"cookies": self.headers.get_all("Cookie") or []}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Echo)
print("ready", flush=True)
server.serve_forever()
'''


class Jar:
    """A browser's cookies. None of the hosts is on the list of public suffixes."""

    def __init__(self):
        self.cookies = []

    def set(self, host, tls, text, script=False):
        """Set-Cookie of a host, or with `script` what a page there gives to document.cookie: whether
        it was taken."""
        pair, *rest = [part.strip() for part in text.split(";")]
        name, _, value = (part.strip() for part in pair.partition("="))
        said = {key.strip().lower(): of.strip() for key, _, of in (part.partition("=") for part in rest)}
        domain = said.get("domain", "").lstrip(".").lower()
        secure, path = "secure" in said, said.get("path", "/")
        if domain and host != domain and not host.endswith("." + domain):
            return False
        if (secure and not tls) or (script and "httponly" in said):
            return False
        if name.lower().startswith("__host-") and (not secure or domain or path != "/"):
            return False
        if not name and re.match("__(host|secure)-", value, re.I):
            return False
        place = (name, domain or host, bool(domain), path)
        if script and any(c["place"] == place and c["http_only"] for c in self.cookies):
            return False
        self.cookies = [c for c in self.cookies if c["place"] != place]
        self.cookies.append({"place": place, "value": value, "secure": secure,
                             "http_only": "httponly" in said})
        return True

    def header(self, host, tls, path):
        """The Cookie header of a request: longer paths first, then older cookies."""
        sent = []
        for cookie in self.cookies:
            name, domain, below, at = cookie["place"]
            here = host == domain or (below and host.endswith("." + domain))
            under = path == at or path.startswith(at.rstrip("/") + "/")
            if here and under and (tls or not cookie["secure"]):
                sent.append((len(at), f"{name}={cookie['value']}" if name else cookie["value"]))
        return "; ".join(text for _, text in sorted(sent, key=lambda one: -one[0]))


class Preview:
    """A sandbox with a program at port 8000, and a browser's way to it."""

    def __init__(self, server):
        api = server.client(server.make_key())
        self.server, self.api = server, api
        self.id = api.post("/v1/sandboxes", json={}).json()["id"]
        base = f"/v1/sandboxes/{self.id}"
        api.put(f"{base}/files?path=app.py", data=APP)
        made = api.post(f"{base}/processes", json={"argv": ["python3", "-u", "app.py"]}).json()
        paddock.wait_for(lambda: b"ready" in api.get(f"{base}/processes/{made['process_id']}/output").body,
                         20, "the program listens")
        self.host = f"8000-{self.id}.{DOMAIN}"
        self.link = api.post(f"{base}/ports/8000/preview", json={}).json()["url"]
        self.token = self.link.split("paddock_preview=")[1]

    def ask(self, jar, tls, path="/", mode="navigate"):
        """One request of the browser; the jar keeps what is set."""
        client = self.server.tls(self.host) if tls else self.server.client()
        client.key = None
        headers = {"Host": self.host, "Sec-Fetch-Mode": mode, "Sec-Fetch-Site": "none"}
        cookies = jar.header(self.host, tls, path.partition("?")[0])
        if cookies:
            headers["Cookie"] = cookies
        connection = client._connection()
        connection.request("GET", path, headers=headers)
        got = connection.getresponse()
        answer = Response(got.status, got.getheaders(), got.read())
        for text in got.headers.get_all("Set-Cookie") or []:
            assert jar.set(self.host, tls, text), f"a browser does not take {text}"
        client.close()
        return answer

    def open(self, tls):
        """A browser that has followed the link."""
        jar = Jar()
        assert self.ask(jar, tls, f"/?paddock_preview={self.token}").status == 303
        assert len(jar.cookies) == 1
        return jar


@pytest.fixture(scope="module")
def server():
    with BothServer() as server:
        yield server


@pytest.fixture(scope="module")
def alice(server):
    return Preview(server)


@pytest.fixture(scope="module")
def bob(server):
    return Preview(server)


def seen(answer):
    """The cookies that the program was sent."""
    assert answer.status == 200, answer.body
    return [pair for line in json.loads(answer.body)["cookies"] for pair in line.split("; ")]


NAMES = ["paddock_preview", "__Host-paddock_preview", "__host-paddock_preview",
         "__Secure-paddock_preview", "=__Host-paddock_preview", "=paddock_preview"]
VALUES = ["", "x", "y" * 300, "{bob}", "p1-{alice}"]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("name", NAMES)
def test_a_sibling_cannot_lock_a_browser_out(alice, bob, tls, name):
    """Cookies of a longer path are sent first, and so are those that were there before."""
    for value in VALUES:
        text = value.format(bob=bob.token, alice=alice.id)
        before, after = Jar(), alice.open(tls)
        for jar in (before, after):
            for path in ("/", "/a", "/a/b"):
                jar.set(bob.host, tls, f"{name}={text}; Domain={DOMAIN}; Path={path}; Secure", script=True)
                jar.set(bob.host, tls, f"{name}={text}; Domain={DOMAIN}; Path={path}", script=True)
            assert jar.set(bob.host, tls, f"shadow=1; Domain={DOMAIN}; Path=/a", script=True)

        assert alice.ask(before, tls, f"/a?paddock_preview={alice.token}").status == 303
        for jar in (before, after):
            cookies = seen(alice.ask(jar, tls, "/a/b"))
            assert "shadow=1" in cookies, "the control: a planted cookie arrives"
            assert not any(re.match("(__Host-)?paddock_preview=", pair) for pair in cookies)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_browser_without_the_link_stays_outside(alice, bob, tls):
    """Bob's token under every name opens his own port and no other."""
    for name in NAMES:
        jar = bob.open(tls)
        jar.set(bob.host, tls, f"{name}={bob.token}; Domain={DOMAIN}; Secure", script=True)
        jar.set(bob.host, tls, f"{name}={bob.token}; Domain={DOMAIN}", script=True)
        assert alice.ask(jar, tls).status == 401, name
        assert bob.ask(jar, tls).status == 200


@pytest.mark.parametrize("name", NAMES)
def test_a_sibling_cannot_let_a_browser_in(alice, bob, name):
    """With Alice's own link: over TLS a token counts only in a cookie that her host has set. The
    control: over plain HTTP, where browsers know no such cookies, it does under the plain name."""
    jar = Jar()
    jar.set(bob.host, True, f"{name}={alice.token}; Domain={DOMAIN}; Secure", script=True)
    jar.set(bob.host, True, f"{name}={alice.token}; Domain={DOMAIN}", script=True)
    assert alice.ask(jar, True).status == 401
    assert alice.ask(jar, False).status == (200 if name.lstrip("=") == "paddock_preview" else 401)
    assert alice.ask(alice.open(True), True).status == 200


def test_the_cookie_is_held_to_its_host(alice, bob):
    """Over TLS by its name, which a browser keeps to the host that has set it; scripts do not see it,
    and a sibling cannot write over it."""
    jar = alice.open(True)
    place = jar.cookies[0]["place"]
    assert place == ("__Host-paddock_preview", alice.host, False, "/")
    assert jar.cookies[0]["http_only"] and jar.cookies[0]["secure"]
    assert not jar.set(alice.host, True, "__Host-paddock_preview=x; Path=/; Secure", script=True)
    assert not jar.header(bob.host, True, "/")


def test_the_program_is_not_sent_the_preview_cookie(alice):
    """The control: its own cookie arrives."""
    jar = alice.open(True)
    assert jar.set(alice.host, True, "mine=1; Path=/", script=True)
    assert seen(alice.ask(jar, True, mode="cors")) == ["mine=1"]
