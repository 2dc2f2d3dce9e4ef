"""GET /v1/audit and GET /v1/overview: what was done and what there is, each tenant's own."""

import pytest

from paddock_testing.server import Server, check_error

AUDIT = "/v1/audit"


@pytest.fixture(scope="module")
def house():
    settings = {"requests_per_s": 0, "creates_per_s": 0, "audit_max_bytes": "64K", "audit_keep": 3}
    with Server(settings) as server:
        server.admin = server.client(server.run("key", "create", "--admin").stdout.strip())
        yield server


def events(client, query=""):
    answer = client.get(AUDIT + query)
    assert answer.status == 200, answer
    return answer.json()["events"]


def everything(client, query="", limit=7):
    found, cursor, pages = [], None, 0
    while cursor or not pages:
        page = client.get(f"{AUDIT}?limit={limit}{query}" + (f"&cursor={cursor}" if cursor else "")).json()
        assert len(page["events"]) <= limit
        found += page["events"]
        cursor = page["next_cursor"]
        pages += 1
    return found, pages


def test_it_is_told_newest_first_and_by_what_was_asked_for(house):
    api = house.client()
    box = api.post("/v1/sandboxes").json()
    base = f"/v1/sandboxes/{box['id']}"
    api.post(base + "/exec", json={"command": "echo hello"})
    check_error(api.post(base + "/exec", json={"command": ""}), 400)
    api.put(base + "/files?path=a", data=b"x")
    api.get(base + "/files?path=a")
    api.delete(base)

    mine = events(api, f"?sandbox={box['id']}")
    assert [e["action"] for e in mine] == ["sandbox.delete", "file.read", "file.write", "exec", "exec", "sandbox.create"]
    assert mine == sorted(mine, key=lambda e: e["time"], reverse=True)
    assert {e["key"] for e in mine} == {box["made_by"]} and {e["tenant"] for e in mine} == {"default"}
    assert [e["action"] for e in events(api, f"?sandbox={box['id']}&action=file.")] == ["file.read", "file.write"]
    assert [e["action"] for e in events(api, f"?sandbox={box['id']}&action=file")] == []
    assert [e["result"] for e in events(api, f"?sandbox={box['id']}&action=exec&result=invalid")] == ["invalid"]
    assert events(api, f"?key={box['made_by']}&limit=1") == mine[:1]
    assert events(api, "?key=0123456789abcdef") == []


def test_pages_go_through_every_file_and_nothing_moves_them(house):
    api = house.client()
    box = api.post("/v1/sandboxes").json()["id"]
    for n in range(700):  # several files
        check_error(api.post(f"/v1/sandboxes/{box}/exec", json={"command": "x" * 200, "argv": [str(n)]}), 400)
    whole, _ = everything(api, f"&sandbox={box}&action=exec", 1000)
    by_pages, pages = everything(api, f"&sandbox={box}&action=exec", 50)
    assert by_pages == whole and pages > len(whole) // 50
    assert len({e["request"] for e in whole}) == len(whole) > 300

    # What is written in between is newer than the cursor, also when a file is put aside for it.
    first = api.get(f"{AUDIT}?sandbox={box}&action=exec&limit=20").json()
    for _ in range(150):
        check_error(api.post(f"/v1/sandboxes/{box}/exec", json={"command": "y" * 200, "argv": []}), 400)
    second = api.get(f"{AUDIT}?sandbox={box}&action=exec&limit=20&cursor={first['next_cursor']}").json()
    assert first["events"] + second["events"] == whole[:40]
    api.delete(f"/v1/sandboxes/{box}")


def test_a_tenant_sees_its_own(house):
    api, other = house.client(), house.client(house.make_key("other"))
    made = other.post("/v1/sandboxes").json()["id"]
    assert [e["sandbox"] for e in events(other, "?action=sandbox.create")] == [made]
    assert made not in str(events(api, "?limit=1000"))
    # Nor by asking, nor by a command that looks like another tenant's line.
    check_error(api.get(AUDIT + "?tenant=other"), 403, "denied", field="tenant")
    check_error(api.get(AUDIT + "?tenant=*"), 403, "denied", field="tenant")
    assert events(api, f"?sandbox={made}") == []
    other.post(f"/v1/sandboxes/{made}/exec", json={"command": '","tenant":"default","x":"'})
    assert made not in str(events(api, "?limit=1000"))
    assert [e["sandbox"] for e in events(house.admin, "?tenant=other&action=sandbox.create")] == [made]
    assert {"other", "default"} <= {e["tenant"] for e in events(house.admin, "?tenant=*&limit=1000")}
    other.delete(f"/v1/sandboxes/{made}")


@pytest.mark.parametrize("query,field", [("limit=0", "limit"), ("limit=1001", "limit"), ("cursor=x", "cursor"), ("cursor=-1-2", "cursor"),
                                         ("cursor=1-2x", "cursor"), ("cursor=0-5", "cursor"), ("since=1", "since"), ("action=" + "a" * 200, "action")])
def test_nonsense_is_refused(house, query, field):
    check_error(house.client().get(f"{AUDIT}?{query}"), 400, "invalid", field=field)


def test_a_cursor_of_a_file_that_is_no_more_ends(house):
    page = house.client().get(f"{AUDIT}?cursor=123456789-5").json()
    assert page == {"events": [], "next_cursor": None}


def test_the_overview_counts(house):
    api, other = house.client(), house.client(house.make_key("third"))
    before = other.get("/v1/overview").json()
    made = [other.post("/v1/sandboxes").json()["id"] for _ in range(2)]
    other.post(f"/v1/sandboxes/{made[0]}/pause")
    now = other.get("/v1/overview").json()
    assert now["tenant"]["name"] == "third" and now["server"] is None
    assert before["tenant"]["sandboxes"]["running"] == 0
    assert (now["tenant"]["sandboxes"]["running"], now["tenant"]["sandboxes"]["paused"]) == (1, 1)
    server = house.admin.get("/v1/overview").json()["server"]
    assert server["sandboxes"]["running"] >= 1 and server["sandboxes"]["paused"] >= 1 and server["since_start"]["created"] >= 2
    slow = server["slowest_creations"]
    assert 1 <= len(slow) <= 5 and [s["ms"] for s in slow] == sorted((s["ms"] for s in slow), reverse=True)
    assert all(s["ms"] > 0 and s["tenant"] and s["provider"] and s["template"] for s in slow)
    other.post(f"/v1/sandboxes/{made[1]}/exec", json={"argv": ["sleep", "60"], "timeout_s": 0.1})
    check_error(other.get("/v1/sandboxes/nosuchone"), 404, "not_found")
    for one in made:
        other.delete(f"/v1/sandboxes/{one}")
    after = house.admin.get("/v1/overview").json()["server"]
    assert after["since_start"]["ended"]["killed"] >= server["since_start"]["ended"]["killed"] + 2
    assert after["since_start"]["commands"] > server["since_start"]["commands"]
    for why, which in (("stopped", "timeout"), ("refused", "not_found")):
        assert after["since_start"][why][which] > server["since_start"][why].get(which, 0)
    check_error(api.get("/v1/overview?x=1"), 400, "invalid", field="x")
    check_error(house.client("").get("/v1/overview"), 401, "unauthenticated")
