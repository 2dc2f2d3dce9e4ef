"""The console's pages and their login, as a browser speaks: what a page of ours may, and what pages of
others, other ports and other people may not. Each attack is shown beside the same request as our page
would send it, which works."""

import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error
from paddock_testing.tls import BothServer
from ws import WebSocket

WEB = Path(__file__).resolve().parents[2] / "web"
LOGIN = "/v1/console/login"
ME = "/v1/console/me"


class Page:
    """A page of the console that is logged in: what a browser sends for it."""

    def __init__(self, server, how=None, host="localhost"):
        self.api = server.client("")
        self.host = f"{host}:{server.port}"
        self.origin = f"http://{self.host}"
        self.made = self.api.post(LOGIN, json=how or {"key": server.key}, headers=self.sent())
        assert self.made.status == 200, self.made
        self.name, self.session = re.match("([^=]+)=([^;]*)", self.made.headers["Set-Cookie"]).groups()
        self.proof = self.made.json()["proof"]

    def sent(self, **more):
        return {"Host": self.host, "Origin": self.origin, "Sec-Fetch-Site": "same-origin"} | more

    def headers(self, without=(), **more):
        """What our own page sends, without some of it, and with something else."""
        all_of_it = self.sent(**{"Cookie": f"{self.name}={self.session}", "X-Paddock-Proof": self.proof})
        all_of_it |= {name.replace("_", "-"): value for name, value in more.items()}
        return {name: value for name, value in all_of_it.items() if name not in without}

    def me(self, without=(), **more):
        return self.api.get(ME, headers=self.headers(without, **more))


@pytest.fixture
def page(server):
    return Page(server)


# ---- the files ----


def policy_of(answer):
    return dict(part.strip().partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split(";"))


def test_the_page_is_one_file_that_runs_nothing_but_what_is_in_it(server):
    answer = server.client("").get("/")
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = policy_of(answer)
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'" and policy["require-trusted-types-for"] == "'script'"
    assert policy["frame-src"] == f"'self' http://*.localhost:{server.port}"
    for header, value in {"X-Frame-Options": "DENY", "Cross-Origin-Opener-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}.items():
        assert answer.headers[header] == value

    html = answer.body.decode()
    for tag, directive, count in (("script", "script-src", 2), ("style", "style-src", 1)):
        parts = re.findall(rf"<{tag}\b([^>]*)>(.*?)</{tag}>", html, re.DOTALL)
        assert len(parts) == count and not any("src=" in attributes for attributes, _ in parts)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for _, text in parts]
        assert policy[directive].split() == [f"'sha256-{value}'" for value in hashes]
    assert not re.search(r"<link(?! rel=\"icon\" href=\"data:,\")", html)


def test_it_is_all_that_is_in_web(api):
    """Each line of each module, less what binds modules to each other."""
    html = api.get("/").body.decode()
    for path in sorted(WEB.iterdir()):
        if path.name in ("index.html", "result.html"):
            continue
        for line in path.read_text().splitlines():
            if not line.startswith("import "):
                assert re.sub("^export ", "", line) in html, (path.name, line)


def test_it_is_packed_for_those_who_ask_and_both_have_tags_of_their_own(api):
    plain = api.get("/", headers={"Accept-Encoding": "identity"})
    packed = api.get("/", headers={"Accept-Encoding": "br, GZIP, deflate"})
    assert packed.headers["Content-Encoding"] == "gzip" and "Content-Encoding" not in plain.headers
    assert gzip.decompress(packed.body) == plain.body and len(packed.body) * 3 < len(plain.body)
    for answer, coding in ((plain, "identity"), (packed, "gzip")):
        assert answer.headers["Vary"] == "Accept-Encoding"
        again = api.get("/", headers={"If-None-Match": answer.headers["ETag"], "Accept-Encoding": coding})
        assert again.status == 304 and not again.body and "Content-Encoding" not in again.headers
    assert plain.headers["ETag"] != packed.headers["ETag"]
    for asked in ("", "gzip;q=0", "x-gzip", "*"):
        assert "Content-Encoding" not in api.get("/", headers={"Accept-Encoding": asked}).headers, asked


def test_the_frame_of_results_is_of_no_origin_and_may_load_nothing(api):
    answer = api.get("/console/result.html")
    assert answer.status == 200 and answer.body == (WEB / "result.html").read_bytes()
    policy = policy_of(answer)
    assert policy["sandbox"] == "allow-scripts" and policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'self'"
    assert "connect-src" not in policy and "frame-src" not in policy
    assert not re.search("https?:|self", policy["script-src"] + policy["style-src"] + policy["img-src"] + policy["font-src"])


def test_nothing_is_inline_and_nothing_is_from_elsewhere():
    for path in WEB.iterdir():
        text = path.read_text()
        if path.name != "result.html":  # whose scripts are anybody's, and which is of no origin for that
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
                                 r"|DOMParser|setHTML|createContextualFragment", text), path
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)[a-z0-9]", text), path
    index = (WEB / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", index)


@pytest.mark.parametrize("name", ["nothing.js", "app.js", "..%2Fapi.js", "result.html%00", "RESULT.HTML", "result.html%2f"])
def test_other_files_are_not_there(api, name):
    check_error(api.get(f"/console/{name}"), (404, 400), ("not_found", "invalid"))


@pytest.fixture
def readable():
    """A directory that the server's user can enter, as that of pytest is not."""
    with tempfile.TemporaryDirectory(prefix="paddock-web-", dir=os.environ.get("PADDOCK_TEST_DIR", "/var/tmp")) as made:
        os.chmod(made, 0o755)
        yield Path(made)


def test_a_developer_gets_the_files_of_a_directory(readable):
    """As they are at that moment; and nothing else of the machine by their names."""
    mine = readable / "web"
    shutil.copytree(WEB, mine)
    (readable / "secret.js").write_text("secret")
    (mine / "huge.js").write_text("x" * (300 << 10))
    with Server({"console_dir": str(mine), "pool_min": 0, "pool_max": 0}) as server:
        stranger = server.client("")
        for path in WEB.iterdir():
            answer = stranger.get(f"/console/{path.name}", headers={"Accept-Encoding": "gzip"})
            assert answer.status == 200 and answer.body == path.read_bytes() and "Content-Encoding" not in answer.headers
        assert stranger.get("/").body == (WEB / "index.html").read_bytes()
        policy = policy_of(stranger.get("/"))
        assert policy["script-src"] == "'self'" and policy["style-src"] == "'self'" and policy["default-src"] == "'none'"
        assert policy_of(stranger.get("/console/result.html"))["sandbox"] == "allow-scripts"

        (mine / "app.js").write_text("// changed")
        tag = stranger.get("/console/app.js").headers["ETag"]
        assert stranger.get("/console/app.js").body == b"// changed"
        assert stranger.get("/console/app.js", headers={"If-None-Match": tag}).status == 304
        for name in ("nothing.js", "..%2fsecret.js", "..", ".js", "app.js%00", "app.txt", "%2fetc%2fhosts.js", "huge.js"):
            answer = stranger.get(f"/console/{name}")
            assert answer.status >= 400 and answer.body != b"secret", name

        shutil.rmtree(mine)
        check_error(stranger.get("/"), (404, 500), ("not_found", "internal"))


def test_it_is_not_below_the_previews_domain_nor_when_it_is_off():
    settings = {"domain": "sandboxes.example", "allowed_hosts": "console.example", "pool_min": 0, "pool_max": 0}
    with Server(settings) as server:
        stranger = server.client("")
        for host in ("localhost", "127.0.0.1", "console.example", "[::1]"):
            assert stranger.get("/", headers={"Host": f"{host}:{server.port}"}).status == 200, host
        made = Page(server, host="console.example")
        assert made.me().status == 200
        host = "sandboxes.example"
        check_error(stranger.get("/", headers={"Host": host}), 404, "not_found", says="console is not at")
        check_error(stranger.post(LOGIN, json={"key": server.key}, headers={"Host": host}), 404, "not_found")
        check_error(made.me(Host=host, Origin=f"http://{host}"), 404, "not_found")
        assert server.client().get(ME, headers={"Host": host}).status == 200  # a key is as before
        check_error(stranger.get("/", headers={"Host": f"x.{host}"}), 404, "not_found")

        Path(server.config).write_text("console = off\n")
        server.send_signal(1)

        def is_off():
            return stranger.get("/").status == 404

        paddock.wait_for(is_off, 20, "the console is off")
        check_error(stranger.post(LOGIN, json={"key": server.key}), 404, "not_found", says="switched off")
        check_error(server.client().post("/v1/console/link"), 404, "not_found")
        check_error(made.me(), 404, "not_found")


# ---- logging in ----


def test_a_key_logs_in(server, page):
    made = page.made.json()
    assert set(made) == {"proof", "tenant", "key_id", "role", "admin", "expires_at"}
    assert made["tenant"] == "default" and made["admin"] is False
    assert re.fullmatch("[0-9a-f]{64}", made["proof"]) and re.fullmatch("[0-9a-f]{64}", page.session)
    assert page.name == f"paddock-{server.port}"
    cookie = page.made.headers["Set-Cookie"]
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict; Max-Age=604800")
    assert page.made.headers["Cache-Control"] == "no-store"
    me = page.me()
    assert me.status == 200
    assert set(me.json()) == {"tenant", "key_id", "role", "admin", "version", "now", "max_sandboxes", "features", "key_labels"}
    assert me.json()["key_id"] == made["key_id"]


def test_logins_are_listed_with_their_key_and_keys_have_their_labels(server):
    admin = server.client(server.run("key", "create", "--admin").stdout.strip())
    made = admin.post("/v1/keys", json={"label": "ann's"}).json()
    other = admin.post("/v1/keys", json={"label": "theirs", "tenant": "other"}).json()
    plain = admin.post("/v1/keys").json()

    def logins():
        return {k["id"]: k["logins"] for k in admin.get("/v1/keys").json()["keys"]}[made["id"]]

    assert made["logins"] == logins() == 0
    pages = [Page(server, {"key": made["key"]}) for _ in range(2)]
    assert logins() == 2
    labels = pages[0].me().json()["key_labels"]
    assert labels[made["id"]] == "ann's" and other["id"] not in labels and plain["id"] not in labels
    assert pages[0].api.delete(LOGIN, headers=pages[0].headers()).status == 204
    assert logins() == 1
    admin.delete(f"/v1/keys/{made['id']}")
    assert logins() == 0 and pages[1].me().status == 401


def test_pages_are_told_what_a_server_is_without(server):
    assert "audit" in server.client().get(ME).json()["features"]
    with Server({"storage": "memory", "audit": "off", "pool_min": 0, "pool_max": 0}) as bare:
        assert bare.client().get(ME).json()["features"] == []


def test_every_kind_of_call_works_by_login(server, page):
    made = page.api.post("/v1/sandboxes", json={}, headers=page.headers())
    assert made.status == 201, made
    base = f"/v1/sandboxes/{made.json()['id']}"
    done = page.api.post(f"{base}/exec", json={"command": "echo here"}, headers=page.headers())
    assert done.json()["stdout"] == "here\n"
    assert page.api.delete(base, headers=page.headers()).status == 204
    check_error(page.api.put("/v1/router", json={}, headers=page.headers()), 403, "denied", says="admin key")


def test_over_tls_the_cookie_is_one_that_only_this_host_can_set():
    with BothServer() as server:
        stranger = server.tls()
        stranger.key = ""
        answer = stranger.post(LOGIN, json={"key": server.key})
        cookie = answer.headers["Set-Cookie"]
        assert cookie.startswith("__Host-paddock-") and cookie.endswith("; Secure") and "Domain" not in cookie


@pytest.mark.parametrize("body,code", [
    ({"key": "e2b_" + "0" * 40}, "unauthenticated"), ({"key": "nonsense"}, "unauthenticated"),
    ({"code": "0" * 64}, "unauthenticated"), ({"code": "x"}, "unauthenticated"),
    ({}, "invalid"), ({"key": "a", "code": "b"}, "invalid"), ({"key": ""}, "invalid"), ({"key": 1}, "invalid"),
    ({"key": "a", "tenant": "default"}, "invalid"), ({"code": None}, "invalid")])
def test_wrong_logins(server, body, code):
    answer = server.client("").post(LOGIN, json=body)
    check_error(answer, {"invalid": 400, "unauthenticated": 401}[code], code)
    assert "Set-Cookie" not in answer.headers


def test_a_link_works_once(server):
    link = server.run("console").stdout.strip()
    assert re.fullmatch(rf"http://localhost:{server.port}/#code=[0-9a-f]{{64}}", link)
    code = link.partition("=")[2]
    assert Page(server, {"code": code}).me().status == 200
    check_error(server.client("").post(LOGIN, json={"code": code}), 401, "unauthenticated", says="used already")
    told = json.loads(server.run("console", "--json").stdout)
    assert set(told) == {"url", "expires_at"}
    wrong = server.run("console", "extra", check=False)
    assert wrong.returncode == 2 and "is too much" in wrong.stderr
    assert server.run("console", "--nothing", check=False).returncode == 2


def test_of_many_who_have_the_link_one_gets_in(server, api):
    for _ in range(10):
        code = api.post("/v1/console/link").json()["url"].partition("=")[2]
        answers = []

        def attempt(code=code, answers=answers):
            answers.append(server.client("").post(LOGIN, json={"code": code}).status)

        threads = [threading.Thread(target=attempt) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [200] + [401] * 7


def test_logging_out_ends_it_here_and_leaves_others(server, page):
    other = Page(server)
    gone = page.api.delete(LOGIN, headers=page.headers())
    assert gone.status == 204 and gone.headers["Set-Cookie"].startswith(f"{page.name}=; ")
    assert "Max-Age=0" in gone.headers["Set-Cookie"]
    check_error(page.me(), 401, "unauthenticated", says="log in again")
    assert other.me().status == 200
    check_error(server.client().delete(LOGIN), 400, "invalid", says="paddock key revoke")


def test_a_login_ends_with_its_key_also_while_it_watches(server, api, sandbox):
    key = server.make_key()
    page = Page(server, {"key": key})
    process = api.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": ["sleep", "1000"]}).json()["process_id"]
    target = f"/v1/sandboxes/{sandbox}/processes/{process}/attach"
    with WebSocket(page.api, target, [*page.headers(("X-Paddock-Proof", "Host")).items(), (
            "Sec-WebSocket-Protocol", f"paddock.v1, proof.{page.proof}")], host=page.host, key=False) as ws:
        assert ws.open
        server.run("key", "revoke", page.made.json()["key_id"])
        paddock.wait_for(lambda: page.me().status == 401, 20, "the login has ended")
        assert ws.closed() == 1008


def test_logins_outlive_the_server_and_no_secret_is_written_down():
    with Server({"pool_min": 0, "pool_max": 0}) as server:
        page, ended = Page(server), Page(server)
        ended.api.delete(LOGIN, headers=ended.headers())
        code = server.client().post("/v1/console/link").json()["url"].partition("=")[2]
        server.kill()
        server.start()
        assert page.me().status == 200
        check_error(ended.me(), 401, "unauthenticated")
        check_error(page.api.post(LOGIN, json={"code": code}), 401, "unauthenticated")  # held nowhere
        kept = b"".join(p.read_bytes() for p in Path(server.state_dir).rglob("*") if p.is_file())
        kept += server.log().encode()
        assert b"console.login" in kept
        for secret in (page.session, page.proof, code):
            assert secret.encode() not in kept and bytes.fromhex(secret) not in kept


# ---- attacks: what else a browser can be made to send ----

# Each row: what the request lacks, and what it has instead.
ATTACKS = {
    "the cookie alone": (("X-Paddock-Proof",), {}),
    "the proof alone": (("Cookie",), {}),
    "no headers of a page at all": (("X-Paddock-Proof", "Origin", "Sec-Fetch-Site"), {}),
    "a page of another port": ((), {"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site"}),
    "a page of another port, said by the origin only": (("Sec-Fetch-Site",), {"Origin": "http://localhost:1"}),
    "a page of another port, said by the site only": (("Origin",), {"Sec-Fetch-Site": "same-site"}),
    "a page of another site": ((), {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}),
    "a page without an origin of its own": ((), {"Origin": "null", "Sec-Fetch-Site": "cross-site"}),
    "a preview below localhost": ((), {"Origin": "http://8000-abcdefghij0123456789.localhost:1"}),
    "an address in the address bar": (("Origin",), {"Sec-Fetch-Site": "none"}),
    "a proof of somebody else's login": ((), {"X-Paddock-Proof": "OTHER"}),
    "the session as the proof": ((), {"X-Paddock-Proof": "SESSION"}),
    "a proof that is too long": ((), {"X-Paddock-Proof": "PROOF0"}),
    "a proof in capitals": ((), {"X-Paddock-Proof": "CAPITALS"}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(server, page, name):
    without, instead = ATTACKS[name]
    words = {"OTHER": Page(server).proof, "SESSION": page.session, "PROOF0": page.proof + "0",
             "CAPITALS": page.proof.upper()}
    instead = {key: words.get(value, value) for key, value in instead.items()}
    headers = {**page.headers(without), **instead}
    for method, path, body in (("GET", ME, None), ("POST", "/v1/sandboxes", {}), ("DELETE", LOGIN, None),
                               ("POST", "/v1/console/link", {})):
        check_error(page.api.request(method, path, json=body, headers=headers), (401, 403),
                    ("unauthenticated", "denied"))
    assert page.me().status == 200  # the control: all of it, as our page sends it


def test_attack_both_a_key_and_a_login(server, page):
    check_error(page.me(X_API_Key=server.key), 400, "invalid", says="not both")
    check_error(page.me(Authorization=f"Bearer {server.key}"), 400, "invalid")
    # The cookie comes by itself, so it is no reason to refuse a key.
    assert page.me(("X-Paddock-Proof",), X_API_Key=server.key).status == 200


def test_attack_cookies_of_other_pages_before_ours(page):
    """A page of another port can set cookies of this name, of a longer path too. They open nothing, and
    keep nobody out."""
    planted = "; ".join([f"{page.name}={'0' * 64}", f"{page.name}=x", f"{page.name}={page.session}"])
    assert page.me(Cookie=planted).status == 200
    assert page.me(Cookie=f"{page.name}={'0' * 64}").status == 401
    assert page.me(Cookie=f"paddock-1={page.session}").status == 401  # another server's


def test_attack_fixation(server, page):
    """Whoever plants a cookie before somebody logs in has another session than theirs."""
    planted = "a" * 64
    made = server.client("").post(LOGIN, json={"key": server.key}, headers=page.sent(Cookie=f"{page.name}={planted}"))
    assert made.status == 200 and planted not in made.headers["Set-Cookie"]
    check_error(page.me(Cookie=f"{page.name}={planted}", X_Paddock_Proof=made.json()["proof"]), 401)
    assert page.me().status == 200


@pytest.mark.parametrize("headers,status", [
    ({"Content-Type": "text/plain"}, 400), ({"Content-Type": "application/x-www-form-urlencoded"}, 400),
    ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
    ({"Content-Type": "application/json", "Origin": "null"}, 403),
    ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"}, 403),
    ({"Content-Type": "application/json"}, 200)])
def test_attack_somebody_is_logged_in_as_somebody_else(server, headers, status):
    """A form of another page, with the attacker's own key; the last row is the control."""
    answer = server.client("").post(LOGIN, data=json.dumps({"key": server.key}), headers=headers)
    assert answer.status == status and ("Set-Cookie" in answer.headers) == (status == 200), answer


def test_attack_a_page_of_another_origin_may_not_even_ask(page):
    """No answer allows another origin: a browser that asks first (CORS) sends nothing then."""
    asked = {"Host": page.host, "Origin": "https://evil.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "x-paddock-proof,content-type"}
    for path in (ME, LOGIN, "/v1/sandboxes", "/", "/console/result.html"):
        answer = page.api.request("OPTIONS", path, headers=asked)
        assert answer.status == 405
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


def test_a_login_opens_websockets_of_our_page_alone(server, api, sandbox, page):
    process = api.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": ["cat"], "stdin": True}).json()["process_id"]
    target = f"/v1/sandboxes/{sandbox}/processes/{process}/attach"
    offered = f"paddock.v1, proof.{page.proof}"

    def attach(protocol=offered, without=(), **more):
        sent = page.headers(("X-Paddock-Proof", "Host", *without), **more)
        if protocol:
            sent["Sec-WebSocket-Protocol"] = protocol
        return WebSocket(page.api, target, sent.items(), host=page.host, key=False)

    with attach() as ws:
        assert ws.open and dict((k.lower(), v) for k, v in ws.headers)["sec-websocket-protocol"] == "paddock.v1"
        ws.send(b"hello\n")
        assert ws.message()[1:] == b"hello\n"
    for wrong in ({"protocol": None}, {"protocol": "paddock.v1"}, {"protocol": f"proof.{'0' * 64}"},
                  {"without": ("Cookie",)}, {"without": ("Origin",)}, {"Origin": "http://localhost:1"},
                  {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"},
                  {"Sec_Fetch_Site": "same-site"}):
        with attach(**wrong) as ws:
            assert not ws.open and ws.status in (401, 403), (wrong, ws.status)


def test_a_login_opens_the_api_and_no_other_door(server, api, sandbox, page):
    """A program behind a port would be sent what logs in; the doors of other protocols have no pages."""
    for method, path in (("GET", f"/v1/sandboxes/{sandbox}/ports/8000/"), ("GET", "/v2/sandboxes"),
                         ("POST", "/sandboxes"), ("GET", "/sandboxes"), ("POST", "/mcp")):
        answer = page.api.stream(method, path, json={} if method == "POST" else None, headers=page.headers())
        assert answer.status == 401, (path, answer.status)
        answer.close()
    assert page.api.get(f"/v1/sandboxes/{sandbox}/ports", headers=page.headers()).status == 200


def test_tenants_see_their_own(server, sandbox):
    other = Page(server, {"key": server.make_key("strangers")})
    assert other.me().json()["tenant"] == "strangers"
    check_error(other.api.get(f"/v1/sandboxes/{sandbox}", headers=other.headers()), 404, "not_found")
    assert Page(server).api.get(f"/v1/sandboxes/{sandbox}", headers=Page(server).headers()).status == 200
    crossed = other.me(Cookie=f"{other.name}={Page(server).session}")
    check_error(crossed, 401, "unauthenticated")
