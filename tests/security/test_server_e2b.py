"""Wall: the E2B door. A token opens one sandbox, a signature one file for one purpose, a port is
closed unless its owner opened it, and nobody speaks in another one's name."""

import contextlib
import os
import threading
import time
from urllib.parse import quote

import pytest

from paddock_testing import run as paddock
from paddock_testing.e2b_http import ENVD, E2b, check_gateway, check_refused, sign
from paddock_testing.server import Server

from .server_kit import Raw, check_no_leak, create, server

SECRET = "/home/user/secret.txt"
ECHO = r'''
import socket, threading
listener = socket.create_server(("127.0.0.1", 8000), backlog=64)
def one(conn):
    with conn:
        head = b""
        while b"\r\n\r\n" not in head:
            piece = conn.recv(65536)
            if not piece: return
            head += piece
        conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
print("ready", flush=True)
while True:
    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()
'''


class Owner(E2b):
    """A tenant. Its sandboxes have a file with a secret and a program on port 8000."""

    def __init__(self, base, name):
        super().__init__(base, base.make_key(name))
        self.name = name
        self.made = []

    def sandbox(self, **body):
        made = self.create(timeout=3600, **body)
        self.fill(made["sandboxID"])
        self.made.append(made["sandboxID"])
        return made

    def fill(self, sandbox):
        self.run(sandbox, f"mkdir -p /home/user; echo secret of {self.name} > {SECRET}")
        started = self.post(f"/v1/sandboxes/{sandbox}/processes",
                            {"argv": ["python3", "-u", "-c", ECHO]}).json()
        output = f"/v1/sandboxes/{sandbox}/processes/{started['process_id']}/output"
        paddock.wait_for(lambda: b"ready" in self.get(output).body, 20, "the program listens")


@pytest.fixture(scope="module")
def owners(server):
    found = [Owner(server, "alice"), Owner(server, "bob")]
    yield found
    for owner in found:
        for sandbox in owner.made:
            owner.delete(f"/sandboxes/{sandbox}")


@pytest.fixture(scope="module")
def alice(owners):
    owners[0].mine = owners[0].sandbox()
    return owners[0]


@pytest.fixture(scope="module")
def bob(owners):
    owners[1].mine = owners[1].sandbox()
    return owners[1]


def read_file(client, sandbox, token=None, **more):
    return client.envd("GET", f"/files?path={SECRET}", sandbox, token, **more)


def link(signature, path=SECRET, **more):
    rest = "".join(f"&{name}={quote(str(value), '')}" for name, value in more.items())
    return f"/files?path={quote(path, '')}&signature={quote(signature, '')}{rest}"


def raw(client, *lines, method="GET", target="/envs", host=None):
    """One request without a key, with exactly these headers."""
    with Raw(client) as connection:
        connection.head(method, target, *lines, key=False, host=host)
        return connection.answer()


def ids(made, port=None):
    lines = [f"E2b-Sandbox-Id: {made['sandboxID']}"]
    return lines + ([f"E2b-Sandbox-Port: {port}"] if port else [])


def token(made):
    return f"X-Access-Token: {made['envdAccessToken']}"


def denied(response, status=401):
    assert response.status == status, response
    assert b"secret of" not in response.body
    check_no_leak(response)


# ---- tokens ----


def test_the_control(alice, bob):
    for owner in (alice, bob):
        seen = read_file(owner, owner.mine["sandboxID"], owner.mine["envdAccessToken"])
        assert seen.status == 200 and seen.text == f"secret of {owner.name}\n"


def test_no_token_and_wrong_ones(alice):
    sandbox, good = alice.mine["sandboxID"], alice.mine["envdAccessToken"]
    for wrong in (None, "x", good[:-1], good + "0", good.upper(), good[:-1] + ("0" if good[-1] != "0" else "1"),
                  sandbox, sandbox + "-" + "0" * 64, "-" + good.split("-")[1], good.split("-")[1],
                  alice.key, " ", good.replace("-", "_")):
        denied(read_file(alice, sandbox, wrong))
        denied(alice.envd("GET", "/envs", sandbox, wrong))
        denied(alice.envd("POST", "/process.Process/List", sandbox, wrong, json_body={}))
    # A key of the tenant is no token, and a token no key.
    denied(alice.request("GET", "/envs", headers={"E2b-Sandbox-Id": sandbox}))
    denied(alice.get("/v2/sandboxes", key=False, headers={"X-API-KEY": good}))
    denied(alice.get("/v2/sandboxes", key=False, headers={"Authorization": f"Bearer {good}"}))


def test_a_token_opens_its_own_sandbox_alone(alice, bob):
    other = alice.sandbox()
    for owner, made in ((bob, bob.mine), (alice, other)):
        denied(read_file(owner, alice.mine["sandboxID"], made["envdAccessToken"]))
        denied(alice.envd("GET", "/envs", alice.mine["sandboxID"], made["envdAccessToken"]))
        # The id of one with the mac of the other.
        mixed = alice.mine["sandboxID"] + "-" + made["envdAccessToken"].split("-")[1]
        denied(read_file(owner, alice.mine["sandboxID"], mixed))


def test_a_token_alone_finds_its_sandbox(alice, bob):
    """Old clients send nothing else."""
    seen = raw(alice, token(bob.mine), target=f"/files?path={SECRET}")
    assert seen.status == 200 and seen.text == "secret of bob\n"
    forged = bob.mine["sandboxID"] + "-" + alice.mine["envdAccessToken"].split("-")[1]
    denied(raw(alice, f"X-Access-Token: {forged}", target=f"/files?path={SECRET}"))
    nobody = "x" * 20 + "-" + "0" * 64
    check_gateway(raw(alice, f"X-Access-Token: {nobody}", target="/envs"), "x" * 20)


def test_the_two_tokens_are_not_the_same(alice):
    made = alice.sandbox(network={"allowPublicTraffic": False})
    denied(read_file(alice, made["sandboxID"], made["trafficAccessToken"]))
    assert read_file(alice, made["sandboxID"], made["envdAccessToken"]).status == 200
    denied(raw(alice, *ids(made, 8000), f"E2b-Traffic-Access-Token: {made['envdAccessToken']}"), 403)


def test_tokens_end_with_their_sandbox(alice):
    made = alice.sandbox()
    assert read_file(alice, made["sandboxID"], made["envdAccessToken"]).status == 200
    alice.delete(f"/sandboxes/{made['sandboxID']}")
    check_gateway(read_file(alice, made["sandboxID"], made["envdAccessToken"]), made["sandboxID"])
    signature = sign(made["envdAccessToken"], SECRET)
    denied(alice.get(link(signature), key=False))


# ---- signatures ----


def test_signatures_control(alice, bob):
    for owner in (alice, bob):
        secret = owner.mine["envdAccessToken"]
        soon = int(time.time()) + 60
        for target in (link(sign(secret, SECRET)), link(sign(secret, SECRET, expires=soon), signature_expiration=soon),
                       link(sign(secret, SECRET, user="root"), username="root")):
            seen = owner.get(target, key=False)
            assert seen.status == 200 and seen.text == f"secret of {owner.name}\n", (target, seen)
            by_header = owner.envd("GET", target, owner.mine["sandboxID"])
            assert by_header.status == 200 and by_header.body == seen.body
        denied(owner.envd("GET", f"/files?path={SECRET}", owner.mine["sandboxID"]))


def forgeries(secret):
    """(what, target): each is a good link of which one thing is another."""
    now = int(time.time())
    good = sign(secret, SECRET)
    later = sign(secret, SECRET, expires=now + 60)
    yield "another path", link(good, path="/etc/passwd")
    yield "another path, with dots", link(good, path="/home/user/../user/secret.txt")
    yield "no path", f"/files?signature={quote(good, '')}"
    yield "another user", link(good, username="root")
    yield "another purpose", link(sign(secret, SECRET, "write"))
    yield "a time that was not signed", link(good, signature_expiration=now + 60)
    yield "a time that is left out", link(later)
    yield "a later time", link(later, signature_expiration=now + 6000)
    yield "a time with a sign", link(later, signature_expiration=f"+{now + 60}")
    yield "changed", link(good[:-1] + ("A" if good[-1] != "A" else "B"))
    yield "cut", link(good[:-1])
    yield "padded", link(good + "=")
    yield "without its version", link(good[3:])
    yield "of another version", link("v2_" + good[3:])
    yield "nothing", link("")
    yield "made with no token", link(sign("", SECRET))
    yield "fields that run together", link(sign(secret, "/home/user/secret.txt:read", "read"))


@pytest.mark.parametrize("number", range(17))
def test_forged_signatures(alice, number):
    what, target = list(forgeries(alice.mine["envdAccessToken"]))[number]
    for answer in (alice.get(target, key=False), alice.envd("GET", target, alice.mine["sandboxID"])):
        assert answer.status in (400, 401), (what, answer)
        denied(answer, answer.status)


def test_all_forgeries_are_tried(alice):
    assert len(list(forgeries(alice.mine["envdAccessToken"]))) == 17


def test_expired_signatures(alice):
    secret, past = alice.mine["envdAccessToken"], int(time.time()) - 2
    target = link(sign(secret, SECRET, expires=past), signature_expiration=past)
    for answer in (alice.get(target, key=False), alice.envd("GET", target, alice.mine["sandboxID"])):
        denied(answer)
        assert answer.json()["message"] == "signature is already expired"
    # That it is expired is told only of what is genuine.
    forged = link(sign("x", SECRET, expires=past), signature_expiration=past)
    assert alice.get(forged, key=False).json()["message"] == "invalid signature"


def test_a_signature_of_another_sandbox(alice, bob):
    target = link(sign(bob.mine["envdAccessToken"], SECRET))
    denied(alice.envd("GET", target, alice.mine["sandboxID"]))
    seen = alice.get(target, key=False)  # it is bob's file, whoever has the link
    assert seen.status == 200 and seen.text == "secret of bob\n"


def test_a_link_to_read_does_not_write(alice):
    secret = alice.mine["envdAccessToken"]
    path = "/home/user/written.txt"
    head = {"Content-Type": "application/octet-stream"}
    written = alice.request("POST", link(sign(secret, path, "write"), path=path), data=b"first", headers=head,
                            key=False)
    assert written.status == 200, written
    denied(alice.request("POST", link(sign(secret, path, "read"), path=path), data=b"second", headers=head,
                         key=False))
    denied(alice.get(link(sign(secret, path, "write"), path=path), key=False))
    assert alice.run(alice.mine["sandboxID"], f"cat {path}") == "first"


def test_signatures_open_nothing_but_files(alice):
    signature = quote(sign(alice.mine["envdAccessToken"], SECRET), "")
    for path in ("/envs", "/metrics", "/files/compose", "/filesx"):
        answer = alice.envd("GET", f"{path}?path={SECRET}&signature={signature}", alice.mine["sandboxID"])
        assert answer.status in (401, 404, 405), answer
        denied(answer, answer.status)
    denied(alice.envd("POST", f"/process.Process/List?path={SECRET}&signature={signature}",
                      alice.mine["sandboxID"], json_body={}))


def test_many_bad_links_do_not_stop_the_others(alice, bob):
    stop, seen = threading.Event(), []

    def flood():
        while not stop.is_set():
            with contextlib.suppress(OSError):
                seen.append(alice.get(link("v1_" + "A" * 43), key=False).status)

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.5)
        began = time.monotonic()
        for _ in range(5):
            assert bob.run(bob.mine["sandboxID"], "echo $((6*7))") == "42\n"
        assert time.monotonic() - began < paddock.seconds(10)
    finally:
        stop.set()
        for thread in threads:
            thread.join(paddock.seconds(20))
    assert set(seen) <= {401, 429} and 401 in seen


# ---- whose request it is ----


def test_headers_that_come_twice(alice, bob):
    good = ids(alice.mine, ENVD) + [token(alice.mine)]
    assert raw(alice, *good).status == 200
    for twice in (ids(alice.mine) + good, ids(bob.mine) + good, good + ids(bob.mine),
                  good + [f"E2b-Sandbox-Port: {ENVD}"], good + ["E2b-Sandbox-Port: 8000"],
                  good + [token(bob.mine)], [token(bob.mine)] + good, good + [token(alice.mine)],
                  good + [f"e2b-sandbox-id: {bob.mine['sandboxID']}"]):
        check_refused(raw(alice, *twice), 400, "twice")
    check_refused(raw(alice, *ids(alice.mine, 8000), "E2b-Traffic-Access-Token: a",
                      "E2b-Traffic-Access-Token: b"), 400, "twice")


@pytest.mark.parametrize("value", ["", "x", "x" * 20, "x" * 21, "X" * 20, "../x", "a" * 5000, "a,b"])
def test_ids_that_are_none(alice, value):
    answer = raw(alice, f"E2b-Sandbox-Id: {value}", token(alice.mine))
    assert answer.status in (400, 401, 502), answer
    denied(answer, answer.status)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "49983x", "", "0x1f", "1e3", "99999999999999999999", "8000,49983"])
def test_ports_that_are_none(alice, port):
    check_refused(raw(alice, *ids(alice.mine), f"E2b-Sandbox-Port: {port}", token(alice.mine)), 400, "65535")


def host_of(client, made, port):
    return f"{port}-{made['sandboxID']}.localhost:{client.port}"


def test_host_and_header_agree(alice, bob):
    mine = host_of(alice, alice.mine, ENVD)
    assert raw(alice, token(alice.mine), host=mine).status == 200
    assert raw(alice, *ids(alice.mine, ENVD), token(alice.mine), host=mine).status == 200
    assert raw(alice, target="/x", host=host_of(alice, alice.mine, 8000)).status == 200
    for lines, host in (
            (ids(bob.mine) + [token(bob.mine)], mine),
            (ids(bob.mine, 8000), host_of(alice, alice.mine, 8000)),
            (ids(alice.mine, ENVD) + [token(alice.mine)], host_of(alice, alice.mine, 8000)),
            (ids(alice.mine, 8000), mine)):
        check_refused(raw(alice, *lines, host=host), 400, "different")
    # A host that names a port is not for the control plane, whatever the key.
    answer = alice.request("GET", "/v2/sandboxes", host=mine)
    denied(answer, answer.status)
    assert answer.status in (401, 404)


def test_a_page_of_one_sandbox_does_not_speak_to_another(alice, bob):
    """From its own origin it could read the answer."""
    check_refused(raw(alice, *ids(bob.mine, 8000), "Origin: http://" + host_of(alice, alice.mine, 8000),
                      host=host_of(alice, alice.mine, 8000)), 400, "different")
    assert raw(alice, *ids(bob.mine, 8000)).status == 200


def test_unknown_hosts(alice):
    answer = raw(alice, *ids(alice.mine), token(alice.mine), host="evil.example")
    assert answer.status == 403, answer
    answer = raw(alice, token(alice.mine), host=f"{ENVD}-{alice.mine['sandboxID']}.evil.example")
    assert answer.status == 403, answer


# ---- ports ----


def test_ports_of_a_v1_sandbox_stay_closed(alice):
    sandbox = create(Keyed(alice))
    made = {"sandboxID": sandbox}
    try:
        alice.fill(sandbox)
        # The control: the owner gets there.
        assert alice.get(f"/v1/sandboxes/{sandbox}/ports/8000/x").status == 200
        denied(raw(alice, *ids(made, 8000), target="/x"), 403)
        denied(raw(alice, target="/x", host=host_of(alice, made, 8000)))
        denied(raw(alice, *ids(made, ENVD)))
        denied(raw(alice, target="/envs", host=host_of(alice, made, ENVD)))
        joined = alice.post(f"/v2/sandboxes/{sandbox}/connect", {}).json()
        opened = raw(alice, *ids(made, 8000), f"E2b-Traffic-Access-Token: {joined['trafficAccessToken']}",
                     target="/x")
        assert opened.status == 200 and opened.body.startswith(b"GET /x ")
    finally:
        alice.delete(f"/sandboxes/{sandbox}")


class Keyed:
    """What server_kit.create needs of a client."""

    def __init__(self, owner):
        self.owner = owner

    def post(self, path, json):
        return self.owner.post(path, json)


def test_the_traffic_token(alice, bob):
    made = alice.sandbox(network={"allowPublicTraffic": False})
    other = alice.sandbox(network={"allowPublicTraffic": False})
    theirs = bob.sandbox(network={"allowPublicTraffic": False})
    good = made["trafficAccessToken"]
    for host in (None, host_of(alice, made, 8000)):
        lines = [] if host else ids(made, 8000)
        opened = raw(alice, *lines, f"e2b-traffic-access-token: {good}", target="/x", host=host)
        assert opened.status == 200 and opened.body.startswith(b"GET /x ")
        assert good.encode() not in opened.body  # it is not for the program
        for wrong in (None, "", "x", good[:-1], good + "0", other["trafficAccessToken"],
                      theirs["trafficAccessToken"], made["envdAccessToken"], alice.key):
            said = [f"E2b-Traffic-Access-Token: {wrong}"] if wrong is not None else []
            answer = raw(alice, *lines, *said, target="/x", host=host)
            denied(answer, 403)
            assert answer.json()["sandboxId"] == made["sandboxID"] and answer.json()["code"] == 403
    # In the address or in a cookie it is nothing.
    denied(raw(alice, *ids(made, 8000), f"Cookie: e2b-traffic-access-token={good}",
               target=f"/x?e2b-traffic-access-token={good}"), 403)
    # An open sandbox needs none.
    assert raw(alice, *ids(alice.mine, 8000), target="/x").status == 200
    check_gateway(raw(alice, *ids(alice.mine, 8001), target="/x"), alice.mine["sandboxID"], 8001)


def test_tokens_and_keys_do_not_reach_the_program(alice):
    secrets = [alice.key, alice.mine["envdAccessToken"]]
    for host in (None, host_of(alice, alice.mine, 8000)):
        lines = [] if host else ids(alice.mine, 8000)
        seen = raw(alice, *lines, f"X-API-Key: {secrets[0]}", f"X-Access-Token: {secrets[1]}", "X-Mine: 1",
                   target="/x", host=host)
        assert seen.status == 200 and b"X-Mine: 1" in seen.body
        for secret in secrets:
            assert secret.encode() not in seen.body


def test_the_masked_host(alice):
    made = alice.sandbox(network={"maskRequestHost": "app.example:${PORT}"})
    seen = raw(alice, *ids(made, 8000), target="/x")
    assert seen.status == 200 and b"\r\nHost: app.example:8000\r\n" in seen.body
    for mask in ("a\r\nX-Evil: 1", "a\nb", "a\0b", "a b", "a/b", "a\tb", "${HOME}", "a" * 300, "ä", "a@b", "$"):
        refused = alice.post("/v2/sandboxes", {"templateID": "base", "network": {"maskRequestHost": mask}})
        check_refused(refused, 400)
        check_no_leak(refused)


def test_visitors_do_not_use_up_the_tenants_rate():
    """Ports are open to the world; what the world asks is not what the owner asks."""
    with Server({"requests_per_s": 1, "burst": 40, "pool_min": 0, "pool_max": 0}) as slow:
        e2b = E2b(slow)
        made = e2b.create()
        for _ in range(60):
            assert raw(e2b, *ids(made), target="/health").status == 204
            assert raw(e2b, *ids(made, 8000), target="/").status == 502
        assert e2b.get(f"/sandboxes/{made['sandboxID']}").status == 200
        # The control: with the token it is the tenant who asks.
        assert any(raw(e2b, *ids(made), token(made)).status == 429 for _ in range(300))


# ---- browsers ----


def test_preflight(alice):
    lines = ids(alice.mine, ENVD) + ["Origin: https://page.example", "Access-Control-Request-Method: POST",
                                     "Access-Control-Request-Headers: x-access-token"]
    answer = raw(alice, *lines, method="OPTIONS", target="/process.Process/List")
    assert answer.status == 204 and answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "X-Access-Token" in answer.headers["Access-Control-Allow-Headers"]
    # What a browser sends by itself is nothing here, so it may not send it.
    assert "Access-Control-Allow-Credentials" not in answer.headers
    # It does nothing and opens nothing.
    denied(raw(alice, *ids(alice.mine, ENVD), "Origin: https://page.example"))
    for target in ("/files?path=/home/user/new", "/envs"):
        assert raw(alice, *lines, method="OPTIONS", target=target).status == 204
    assert "new" not in alice.run(alice.mine["sandboxID"], "ls /home/user")
    # The control plane is not for pages.
    answer = raw(alice, "Origin: https://page.example", f"X-API-Key: {alice.key}", target="/v2/sandboxes")
    assert answer.status == 200 and "Access-Control-Allow-Origin" not in answer.headers
    assert raw(alice, *lines[2:], method="OPTIONS", target="/v2/sandboxes").status == 405


def test_a_form_of_a_page_makes_no_sandbox(alice):
    before = len(alice.list())
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        refused = alice.request("POST", "/v2/sandboxes", data=b'{"templateID":"base"}',
                                headers={"Content-Type": kind})
        check_refused(refused, 400, "Content-Type")
    assert len(alice.list()) == before


def test_strangers_do_not_fill_the_audit(server, alice, bob):
    """A link that cannot be read is as much nobody's as one with a wrong signature."""

    def size():
        return os.stat(os.path.join(server.state_dir, "server", "audit.log")).st_size

    def flood(target):
        before = size()
        for _ in range(200):
            answer = raw(bob, *ids(alice.mine), target=target)
            assert answer.status in (400, 401), answer
        return size() - before

    before = size()
    assert read_file(alice, alice.mine["sandboxID"], alice.mine["envdAccessToken"]).status == 200
    paddock.wait_for(lambda: size() > before, 10, "the owner's reading is written down")  # the control
    one = size() - before
    for target in ("/files?path=" + "a" * 5000, f"/files?path={SECRET}&signature={'a' * 500}",
                   f"/files?path={SECRET}&path=/etc/passwd", "/files?path=%00"):
        began = time.monotonic()
        grown = flood(target)
        allowed = 21 * (2 + time.monotonic() - began)
        assert grown < 2 * one * allowed, (target[:40], grown // one)
        # On a machine so slow that all of them are allowed there is nothing to see.
        assert grown < 150 * one or allowed > 100, (target[:40], grown // one)


# ---- snapshots ----


def test_snapshots_of_another_tenant(alice, bob):
    made = alice.post(f"/sandboxes/{alice.mine['sandboxID']}/snapshots", {"name": "golden"})
    assert made.status == 201, made
    snapshot = made.json()["snapshotID"]
    try:
        for name in (snapshot, "golden", "golden:default", "alice/golden", "alice/golden:default",
                     f"alice/{snapshot}", f"sn-{snapshot}"):
            refused = bob.post("/v2/sandboxes", {"templateID": name})
            check_refused(refused, 404, "no template")
            assert bob.delete(f"/templates/{quote(name, '')}").status == 404
            assert bob.get(f"/templates/aliases/{quote(name, '')}").status == 404
            listed = bob.get(f"/snapshots?name={quote(name, '')}")
            assert listed.status == 200 and listed.json() == [], listed
        sandbox = alice.mine["sandboxID"]
        assert bob.get("/snapshots").json() == []
        assert bob.get(f"/snapshots?sandboxID={sandbox}").json() == []
        for path in ("snapshots", "fork", "connect", "pause", "timeout"):
            check_refused(bob.post(f"/sandboxes/{sandbox}/{path}", {"timeout": 60} if path == "timeout" else {}), 404)
        # The control: its owner finds it by each of its names.
        for name in (snapshot, "golden", "alice/golden:default"):
            copy = alice.post("/v2/sandboxes", {"templateID": name})
            assert copy.status == 201, copy
            copy = copy.json()
            seen = read_file(alice, copy["sandboxID"], copy["envdAccessToken"])
            assert seen.text == "secret of alice\n"
            alice.delete(f"/sandboxes/{copy['sandboxID']}")
    finally:
        assert alice.delete(f"/templates/{snapshot}").status == 204


def roots(server):
    """The names of the roots that there are, also of those that are being made."""
    return set(os.listdir(os.path.join(server.state_dir, "roots")))


def test_copies_of_one_tenant_leave_room_for_others(server, alice, bob):
    """A full root keeps a copier busy: who has many of them copied waits for himself, not others for him."""
    big = alice.create(timeout=3600)["sandboxID"]
    small = bob.create(timeout=3600)["sandboxID"]
    made, errors = [], []

    def snapshot(owner, sandbox):
        answer = owner.post(f"/sandboxes/{sandbox}/snapshots", {})
        assert answer.status == 201, answer
        return answer.json()["snapshotID"]

    def copy(template):
        answer = alice.post("/v2/sandboxes", {"templateID": template})
        (made if answer.status == 201 else errors).append(answer)

    try:
        alice.run(big, "head -c 300M /dev/urandom > /home/user/big", timeout_s=120)
        template = snapshot(alice, big)

        def overtakes():
            """Is bob's snapshot, asked for when six of alice's copies were under way, there before
            any of them? Had it waited for one, it never could be."""
            before = roots(server)
            threads = [threading.Thread(target=copy, args=(template,), daemon=True)
                       for _ in range(6)]
            for thread in threads:
                thread.start()
            paddock.wait_for(lambda: roots(server) - before or made, 30, "a copy is under way")
            bob.delete(f"/templates/{snapshot(bob, small)}")
            first = not made
            for thread in threads:
                thread.join(paddock.seconds(60))
            assert len(made) == 6 and not errors, errors
            while made:
                alice.delete(f"/sandboxes/{made.pop().json()['sandboxID']}")
            return first

        assert any(overtakes() for _ in range(5)), "it waited for another tenant's copy, every time"
    finally:
        for answer in made:
            alice.delete(f"/sandboxes/{answer.json()['sandboxID']}")
        for owner, sandbox in ((alice, big), (bob, small)):
            owner.delete(f"/sandboxes/{sandbox}")
        for found in alice.get("/snapshots").json():
            alice.delete(f"/templates/{found['snapshotID']}")


def test_a_name_of_one_tenant_holds_up_no_other(server, alice, bob):
    """A creation that takes long, under a key that another tenant uses as well."""
    big = alice.create(timeout=3600)["sandboxID"]
    made = []

    def create(owner, template, key):
        answer = owner.post("/v2/sandboxes", {"templateID": template}, headers={"Idempotency-Key": key})
        assert answer.status == 201, answer
        made.append((owner, answer.json()["sandboxID"]))
        return answer.json()["sandboxID"]

    def overtakes(key):
        """Is bob's sandbox there before alice's, which is being made under the same key?"""
        slow = []
        before = roots(server)
        threads = [threading.Thread(target=lambda: slow.append(create(alice, template, key)), daemon=True)
                   for _ in range(2)]
        for thread in threads:
            thread.start()
        paddock.wait_for(lambda: roots(server) - before or slow, 30, "a copy is under way")
        create(bob, "base", key)
        first = not slow
        for thread in threads:
            thread.join(paddock.seconds(60))
        # The control: the same tenant waits, and finds what was made.
        assert len(slow) == 2 and slow[0] == slow[1]
        return first

    try:
        alice.run(big, "head -c 500M /dev/urandom > /home/user/big", timeout_s=120)
        template = alice.post(f"/sandboxes/{big}/snapshots", {}).json()["snapshotID"]
        assert any(overtakes(f"same-{n}") for n in range(5)), (
            "it waited for another tenant's copy, every time")
    finally:
        for owner, sandbox in [(alice, big), *made]:
            owner.delete(f"/sandboxes/{sandbox}")
        for found in alice.get("/snapshots").json():
            alice.delete(f"/templates/{found['snapshotID']}")
