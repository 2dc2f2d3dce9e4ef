"""Keys by the API, and what each role may: the same requests by three keys of one tenant, and a stranger's."""

import re

import pytest

from helpers import Box
from paddock_testing.run import settled
from paddock_testing.server import Server, check_error
from ws import BINARY, WebSocket

KEYS = "/v1/keys"


@pytest.fixture(scope="module")
def house():
    with Server({"requests_per_s": 0, "creates_per_s": 0}) as server:
        server.admin = server.client(server.run("key", "create", "--admin").stdout.strip())
        server.reader = server.client(server.run("key", "create", "--reader", "--label", "wall").stdout.strip())
        yield server


def role(client):
    return client.get("/v1/console/me").json()["role"]


def test_roles_are_told(house):
    assert [role(c) for c in (house.client(), house.admin, house.reader)] == ["operator", "admin", "reader"]
    shown = house.run("key", "list").stdout
    assert re.search("reader +wall", shown) and re.search("admin +$", shown, re.M)
    assert "not both" in house.run("key", "create", "--reader", "--admin", check=False).stderr
    assert "are for" in house.run("key", "list", "--reader", check=False).stderr


def test_a_key_is_made_used_and_revoked(house):
    made = house.admin.post(KEYS, json={"tenant": "acme", "label": "ci", "role": "reader"})
    assert made.status == 201 and made.headers["Cache-Control"] == "no-store", made
    made = made.json()
    key = made.pop("key")
    mine = house.client(key)
    me = mine.get("/v1/console/me").json()
    assert (me["tenant"], me["key_id"], me["role"]) == ("acme", made["id"], "reader")
    listed = {k["id"]: k for k in house.admin.get(KEYS).json()["keys"]}
    assert listed[made["id"]]["label"] == "ci" and listed[made["id"]]["revoked_at"] is None
    assert [k["id"] for k in house.admin.get(KEYS + "?tenant=acme").json()["keys"]] == [made["id"]]
    assert key not in house.admin.get(KEYS).text and key not in house.log()

    assert house.admin.delete(f"{KEYS}/{made['id']}").status == 204
    check_error(mine.get("/v1/console/me"), 401, "unauthenticated", says="revoked")
    assert house.admin.delete(f"{KEYS}/{made['id']}").status == 204
    assert house.admin.get(KEYS + "?tenant=acme").json()["keys"][0]["revoked_at"]
    done = [(e["action"], e["command"]) for e in house.admin.get("/v1/audit?action=key.").json()["events"]]
    assert ("key.revoke", made["id"]) in done and ("key.create", f"{made['id']} of tenant acme, reader") in done


def test_a_key_expires_by_itself_and_ends_what_it_has_opened(house):
    made = house.admin.post(KEYS, json={"expires_in_s": 2}).json()
    brief, late = house.client(made["key"]), house.client(house.run("key", "create", "--expires", "30d").stdout.strip())
    listed = {k["id"]: k for k in house.admin.get(KEYS).json()["keys"]}
    assert listed[made["id"]]["expires_at"] == made["expires_at"] and made["revoked_at"] is None
    assert role(brief) == role(late) == "operator"
    with WebSocket(brief, "/v1/changes") as changes:
        assert changes.closed() == 1008
    check_error(brief.get("/v1/sandboxes"), 401, "unauthenticated", says="has expired; paddock key create")
    assert re.search(f"{made['id']}.* expired", house.run("key", "list").stdout)
    assert role(late) == "operator" and house.admin.delete(f"{KEYS}/{made['id']}").status == 204
    # It outlives no restart either, and neither is it good again.
    house.kill()
    house.start()
    check_error(brief.get("/v1/console/me"), 401, "unauthenticated")
    assert role(late) == "operator"
    assert "are for" in house.run("key", "list", "--expires", "1h", check=False).stderr


@pytest.mark.parametrize("body,field", [({"expires_in_s": 0}, "expires_in_s"), ({"expires_in_s": 4e8}, "expires_in_s"), ({"tenant": "Big Corp"}, "tenant"), ({"role": "root"}, "role"), ({"label": "a\u0007"}, "label"),
                                        ({"label": "x" * 101}, "label"), ({"name": "x"}, "name")])
def test_nonsense_is_refused(house, body, field):
    before = len(house.admin.get(KEYS).json()["keys"])
    check_error(house.admin.post(KEYS, json=body), 400, "invalid", field=field)
    assert len(house.admin.get(KEYS).json()["keys"]) == before


def test_keys_are_for_admins(house):
    for client in (house.client(), house.reader):
        for answer in (client.get(KEYS), client.post(KEYS, json={"role": "admin"}), client.delete(f"{KEYS}/0123456789abcdef")):
            check_error(answer, 403, "denied", says="admin key")
    check_error(house.client("").get(KEYS), 401, "unauthenticated")
    check_error(house.admin.delete(f"{KEYS}/0123456789abcdef"), 404, "not_found")


LOOKS = ["", "/processes", "/env", "/network", "/ports", "/metrics", "/events", "/contexts", "/files/list?path=.", "/files/stat?path=a",
         "/files?path=a", "/files/search?path=.&pattern=x"]


def test_a_reader_looks(house):
    box = Box(house.client(), house.client().post("/v1/sandboxes").json()["id"])
    house.client().put(f"{box.base}/files?path=a", data=b"text")
    # A use ends a moment after its answer.
    used = settled(lambda: box.get()["last_used_at"], still=0.2)
    for look in LOOKS:
        assert house.reader.get(box.base + look).status == 200, look
    for look in ("/v1/sandboxes", "/v1/providers", "/v1/overview", "/v1/audit", "/v1/router", "/v1/route"):
        assert house.reader.get(look).status == 200, look
    # None of that was a use of it.
    assert box.get()["last_used_at"] == used
    house.client().delete(box.base)


def test_a_reader_does_nothing_else(house):
    """Each of these is seen to work with an operator's key."""
    operator = house.client()
    box = Box(operator, operator.post("/v1/sandboxes").json()["id"])
    process = box.start("cat", stdin=True)["process_id"]
    acts = [("POST", "/v1/sandboxes", {}), ("PUT", "/v1/sessions/a/b", {}), ("POST", box.base + "/exec", {"command": "true"}),
            ("POST", box.base + "/processes", {"command": "true"}), ("POST", f"{box.base}/processes/{process}/stdin", {"text": "x"}),
            ("POST", box.base + "/extend", {"idle_timeout_s": 60}), ("PUT", box.base + "/env", {"env": {"A": "1"}}),
            ("POST", box.base + "/files/mkdir", {"path": "d"}), ("POST", box.base + "/ports/8000/preview", {}),
            ("POST", box.base + "/pause", {}), ("POST", box.base + "/resume", {}),
            ("GET", box.base + "/ports/8000/", None),
            ("DELETE", f"{box.base}/processes/{process}", None), ("DELETE", box.base, None)]
    for method, path, body in acts:
        check_error(house.reader.request(method, path, json=body), 403, "denied", says="a reader's key may look")
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize",
             "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}
    check_error(house.reader.post("/mcp", json=hello), 403, "denied", says="a reader's key may look")
    assert operator.post("/mcp", json=hello).status == 200
    # The doors of E2B hand out tokens that do more.
    def status(client, method, path, **more):
        answer = client.stream(method, path, **more)
        answer.close()
        return answer.status

    assert status(house.reader, "GET", "/sandboxes") == 403 and status(operator, "GET", "/sandboxes") == 200
    assert status(house.reader, "POST", "/sandboxes", json={"templateID": "base"}) == 403
    port = {"Host": f"8000-{box.id}.localhost:{house.port}"}
    assert status(house.reader, "GET", "/", headers=port) == 403 and status(operator, "GET", "/", headers=port) == 502
    for method, path, body in acts:
        answer = operator.request(method, path, json=body)
        assert answer.status < 300 or answer.status == 502, (method, path, answer)
    operator.delete("/v1/sessions/a/b")


def test_a_reader_watches_a_terminal_and_types_nothing(house):
    operator = house.client()
    box = Box(operator, operator.post("/v1/sandboxes").json()["id"])
    process = box.start("cat", stdin=True)["process_id"]
    where = f"{box.base}/processes/{process}/attach"
    with WebSocket(house.reader, where) as eye, WebSocket(operator, where) as hand:
        eye.raw.send(eye.frame(BINARY, b"by the reader\n"))
        assert eye.message()["error"]["code"] == "denied"
        hand.send(b"by the operator\n")
        streams, _ = eye.collect(until=b"operator\n")
        assert streams[1] == b"by the operator\n"
    operator.delete(box.base)
