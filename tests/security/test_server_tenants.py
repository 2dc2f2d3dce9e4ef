"""Wall: between tenants. Every operation of the API's description is tried with the key of one
tenant on what belongs to another; the answer is the same 404 as for what was never there. The
control: the owner's key gets something else on the same path."""

import json
import pathlib
import re
import secrets
from urllib.parse import quote

import pytest

from paddock_testing.server import check_error

from .server_kit import Raw, alice, bob, create, execute, out, server, works

OPENAPI = pathlib.Path(__file__).resolve().parents[2] / "api" / "openapi.yaml"
METHODS = ("get", "put", "post", "delete", "patch", "head")


def operations():
    """(method, path) of every operation, read line by line: no YAML parser is needed for that."""
    found, path, inside = [], None, False
    for line in OPENAPI.read_text().splitlines():
        if re.match(r"\S", line):
            inside = line.startswith("paths:")
        elif inside and (m := re.match(r"  (/\S*):", line)):
            path = m[1]
        elif inside and path and (m := re.match(r"    ([a-z]+):", line)) and m[1] in METHODS:
            found.append((m[1].upper(), path))
    return found


OPERATIONS = operations()
SANDBOX = [(m, p) for m, p in OPERATIONS if "{id}" in p]


def test_the_description_was_read():
    assert len(SANDBOX) >= 40 and ("POST", "/v1/sandboxes/{id}/exec") in SANDBOX


# Bodies and parameters that are right, so that nothing else can be the reason of a refusal.
BODIES = {"/exec": {"command": "touch /workspace/foreign"},
          "/processes": {"command": "touch /workspace/foreign"}, "/extend": {"idle_timeout_s": 1700},
          "/signal": {"signal": "SIGKILL"}, "/resize": {"rows": 1, "cols": 1},
          "/files/mkdir": {"path": "foreign"}, "/files/move": {"from": "kept", "to": "foreign"},
          "/files/copy": {"from": "kept", "to": "foreign"},
          "/files/chmod": {"path": "kept", "mode": "0777"},
          "/files/search": {"path": ".", "pattern": "a", "mode": "literal"},
          "/files/replace": {"path": ".", "pattern": "a", "replacement": "b", "mode": "literal"},
          "/env": {"env": {"FOREIGN": "1"}}, "/preview": {}, "/pause": {}, "/resume": {}}
QUERIES = {"/files": "?path=kept", "/files/list": "?path=.", "/files/stat": "?path=kept",
           "/files/archive": "?path=.", "/files/watch": "?path=.",
           "/files/search": "?path=.&pattern=a&mode=literal"}


# A context of alice's and an execution in it. That of a language is there for whoever asks, also after its deletion.
EXECUTION = ["none/executions/none"]
# A preview link of alice's.
LINK = ["none"]


def call(client, method, path, sandbox, process):
    end = path.replace("/v1/sandboxes/{id}", "")
    target = (path.replace("{id}", sandbox).replace("{pid}", process).replace("{port}", "8000")
              .replace("{path}", "x").replace("{cid}/executions/{eid}", EXECUTION[0]).replace("{cid}", "python")
              .replace("{link_id}", LINK[0]))
    body = None
    if method in ("POST", "PUT", "PATCH"):
        body = BODIES.get(end, BODIES.get("/" + end.rsplit("/", 1)[-1]))
    if method in ("GET", "DELETE", "PUT") or end == "/files":
        target += QUERIES.get(end, "")
    lines = []
    if "/attach" in target:
        lines = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                 "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    data = json.dumps(body).encode() if body is not None else b"x" if method in ("PUT", "POST") else b""
    if data:
        lines += ["Content-Type: " + ("application/json" if body is not None
                                      else "application/octet-stream"),
                  f"Content-Length: {len(data)}"]
    with Raw(client) as raw:
        raw.head(method, target, *lines)
        raw.send(data)
        return raw.answer(whole="/watch" not in target, head_only=method == "HEAD")


@pytest.fixture(scope="module")
def process(alice):
    """Something of alice's to steal and to break."""
    out(alice, "echo secret-of-alice > kept")
    made = alice.post(f"/v1/sandboxes/{alice.sandbox}/processes",
                      json={"command": "sleep 1000", "stdin": True})
    assert made.status == 201, made

    context = alice.post(f"/v1/sandboxes/{alice.sandbox}/contexts", json={"language": "bash"}).json()["id"]
    cell = alice.post(f"/v1/sandboxes/{alice.sandbox}/contexts/{context}/execute", json={"code": "echo 1"})
    assert cell.status == 200, cell
    EXECUTION[0] = f"{context}/executions/{cell.json()['id']}"

    link = alice.post(f"/v1/sandboxes/{alice.sandbox}/ports/8000/preview", json={})
    assert link.status == 200, link
    LINK[0] = link.json()["id"]
    yield made.json()["process_id"]


@pytest.mark.parametrize("method,path", SANDBOX)
def test_what_belongs_to_others_is_not_there(server, alice, bob, process, method, path):
    """A30: the answer is that of an id that nobody has, but for the id that was asked for."""
    never = "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(20))
    foreign = call(bob, method, path, alice.sandbox, process)
    random = call(bob, method, path, never, process)
    assert foreign.status == random.status == 404, (foreign, random)
    if method != "HEAD":
        assert foreign.body.replace(alice.sandbox.encode(), b"") == random.body.replace(never.encode(), b"")
        assert set(foreign.headers) == set(random.headers)
        check_error(foreign, 404, "not_found")


def test_what_belongs_to_others_is_as_it_was(alice, process):
    """After all of that, and the control: for its owner it is there."""
    shown = alice.get(f"/v1/sandboxes/{alice.sandbox}").json()
    assert shown["state"] == "running" and shown["idle_timeout_s"] == 1800
    assert out(alice, "cat kept; stat -c %a kept; echo ${FOREIGN:-unset}; ls -A | grep -c foreign || true"
               ).split() == ["secret-of-alice", "644", "unset", "0"]
    assert alice.get(f"/v1/sandboxes/{alice.sandbox}/processes/{process}").json()["running"]


@pytest.mark.parametrize("method,path", [
    (m, p) for m, p in SANDBOX
    if not p.endswith(("{id}", "/pause", "/resume", "/processes/{pid}", "/signal", "/{path}", "/attach"))])
def test_the_control_of_the_table(alice, process, method, path):
    """With the right key nothing of it is a 404."""
    out(alice, "echo secret-of-alice > kept")
    assert call(alice, method, path, alice.sandbox, process).status != 404


@pytest.mark.parametrize("method,path", OPERATIONS)
def test_without_a_key_nothing_is_done(server, alice, process, method, path):
    """A01: every operation but the open ones wants a key first; the answer is always the same."""
    # The console's files are the same for everybody, and a login is how a key is shown (tests/api/test_console.py).
    if path in ("/healthz", "/readyz", "/metrics", "/openapi.yaml", "/docs", "/", "/console/{file}",
                "/v1/console/login"):
        return
    nobody = server.client("e2b_" + "0" * 40)
    answer = call(nobody, method, path.replace("{user_id}", "u").replace("{thread_id}", "t"),
                  alice.sandbox, process)
    assert answer.status == 401
    if method != "HEAD":
        check_error(answer, 401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_lists_show_the_own_only(alice, bob):
    for query in ("", "?state=all", "?limit=1000&state=all", "?user_id=u&thread_id=t",
                  "?metadata.a=b&state=all"):
        listed = bob.get("/v1/sandboxes" + query)
        assert listed.status == 200 and alice.sandbox not in listed.text


def test_cursors_of_others_show_nothing(alice, bob):
    """A31: a cursor is a place in one's own list, whoever made it, or refused."""
    mine = [create(alice) for _ in range(3)]
    cursor = alice.get("/v1/sandboxes?limit=1").json()["next_cursor"]
    assert cursor
    for text in (cursor, alice.sandbox, "0", "-1", "A" * 63, "%27%20OR%201=1--", "%0d%0a", "x" * 500):
        got = bob.get(f"/v1/sandboxes?state=all&limit=1000&cursor={text}")
        assert got.status in (200, 400), got
        assert not any(id in got.text.replace(text, "") for id in [alice.sandbox, *mine]), got
    for id in mine:
        alice.delete(f"/v1/sandboxes/{id}")


def test_keys_of_requests_do_not_collide(alice, bob):
    """One Idempotency-Key of two tenants: two sandboxes, and no word about the other."""
    key = {"Idempotency-Key": "retry-" + secrets.token_hex(4)}
    a = alice.post("/v1/sandboxes", json={"metadata": {"of": "alice"}}, headers=key)
    b = bob.post("/v1/sandboxes", json={"metadata": {"of": "bob"}}, headers=key)
    assert a.status == b.status == 201 and a.json()["id"] != b.json()["id"]
    assert "Idempotent-Replayed" not in b.headers
    again = bob.post("/v1/sandboxes", json={"metadata": {"of": "bob"}}, headers=key)
    assert again.json()["id"] == b.json()["id"] and again.headers["Idempotent-Replayed"] == "true"
    # The same for commands, whose results are kept.
    for client, box, word in ((alice, a, "of-alice"), (bob, b, "of-bob")):
        ran = client.post(f"/v1/sandboxes/{box.json()['id']}/exec", headers=key,
                          json={"command": f"echo {word}"})
        assert ran.json()["stdout"] == word + "\n"
    for client, box in ((alice, a), (bob, b)):
        client.delete(f"/v1/sandboxes/{box.json()['id']}")


def test_sessions_are_found_by_their_tenant_only(alice, bob):
    """One user and thread of two tenants: each has its own; neither can end the other's."""
    path = f"/v1/sessions/user/thread-{secrets.token_hex(4)}"
    mine = alice.put(path, json={})
    assert mine.status == 201
    id = mine.json()["id"]
    check_error(bob.get(path), 404)
    check_error(bob.delete(path), 404)
    theirs = bob.put(path, json={})
    assert theirs.status == 201 and theirs.json()["id"] != id
    assert alice.put(path, json={}).json()["id"] == id
    assert bob.delete(path).status == 204
    assert alice.get(path).json()["id"] == id
    # Names cannot be made to mean another tenant's.
    for user in ("alice/user", "..", "alice%2fuser", "*", "%25", "user%00", "user' OR '1'='1"):
        got = bob.get(f"/v1/sessions/{quote(user, safe='')}/{path.rsplit('/', 1)[1]}")
        assert got.status in (400, 404) and id not in got.text
    alice.delete(path)


@pytest.mark.parametrize("field", ["owner", "tenant", "id", "privileged", "mounts", "binds", "network",
                                   "state", "isolation", "root", "__proto__", "constructor", "uid"])
def test_nothing_can_be_assigned_that_is_not_offered(alice, field):
    """A32."""
    check_error(alice.post("/v1/sandboxes", json={field: "alice"}), 400, "invalid", field)
    check_error(alice.post(f"/v1/sandboxes/{alice.sandbox}/exec", json={"command": "true", field: "x"}),
                400, "invalid", field)
    check_error(alice.post(f"/v1/sandboxes/{alice.sandbox}/extend", json={field: "x"}), 400, "invalid", field)


def test_sql_is_text(server, alice):
    """A57: whatever is stored and looked for is data."""
    evil = "'; DROP TABLE sandboxes; --"
    sandbox = create(alice, metadata={evil: evil}, user_id=evil, thread_id=evil)
    q = quote(evil, safe="")
    for query in (f"user_id={q}&thread_id={q}", f"user_id={q}"):
        listed = alice.get(f"/v1/sandboxes?{query}")
        assert listed.status == 200 and [s["id"] for s in listed.json()["sandboxes"]] == [sandbox]
    assert alice.get(f"/v1/sessions/{q}/{q}").json()["id"] == sandbox
    assert alice.get(f"/v1/sandboxes/{alice.sandbox}").status == 200
    for q in ("%27%20OR%20%271%27=%271", "%22", "%5c", "%25", "_"):
        got = alice.get(f"/v1/sandboxes?user_id={q}&thread_id={q}")
        assert got.status == 200 and got.json()["sandboxes"] == []
    alice.delete(f"/v1/sandboxes/{sandbox}")


def test_a_deleted_tenants_processes_are_not_the_next_ones(alice, bob):
    """A sandbox's id and its processes' ids are never found through another sandbox."""
    theirs = execute(alice, "echo secret")["process_id"]
    for end in ("", "/output"):
        got = bob.get(f"/v1/sandboxes/{bob.sandbox}/processes/{theirs}{end}")
        check_error(got, 404)
    for pid in ("1", "0", "-1", "2", "99999999999999999999", "self", "4294967297"):
        got = bob.get(f"/v1/sandboxes/{bob.sandbox}/processes/{pid}")
        check_error(got, (400, 404))
        got = bob.post(f"/v1/sandboxes/{bob.sandbox}/processes/{pid}/signal", json={"signal": 9})
        check_error(got, (400, 404))
    works(alice)
    works(bob)


def test_ids_cannot_be_guessed(alice):
    ids = [create(alice) for _ in range(4)]
    assert all(re.fullmatch("[a-z0-9]{20}", id) for id in ids)
    # Of 20 characters hardly two are the same at the same place, in any pair.
    for a in ids:
        for b in ids:
            assert a == b or sum(x == y for x, y in zip(a, b)) < 10
    for id in ids:
        alice.delete(f"/v1/sandboxes/{id}")
