"""Tickets: a file at an address, once; links to ports that are listed and revoked; every process of a sandbox."""

import threading
from contextlib import closing
from urllib.parse import quote

import pytest

from paddock_testing.run import wait_for
from paddock_testing.server import check_error
from ws import Raw


def ticket(api, base, path, **more):
    extra = "".join(f"&{name}={value}" for name, value in more.items())
    made = api.post(f"{base}/files/ticket?path={quote(path)}{extra}")
    assert made.status == 201, made
    assert made.headers["Cache-Control"] == "no-store"
    return made.json()["url"]


@pytest.fixture
def base(api, sandbox):
    at = f"/v1/sandboxes/{sandbox}"
    assert api.put(f"{at}/files?path=/workspace/a%20%C3%A9%22.html", data=b"<script>1</script>").status == 201
    return at


NAME = '/workspace/a é".html'


def test_a_ticket_gives_the_file_once_without_a_key(server, api, base):
    url = ticket(api, base, NAME)
    with closing(server.client("")) as anyone:
        got = anyone.get(url)
        assert got.status == 200 and got.body == b"<script>1</script>"
        assert got.headers["Content-Disposition"] == "attachment; filename*=UTF-8''a%20%C3%A9%22.html"
        assert got.headers["Content-Type"] == "application/octet-stream"
        assert "sandbox" in got.headers["Content-Security-Policy"] and got.headers["X-Content-Type-Options"] == "nosniff"
        check_error(anyone.get(url), 401, "unauthenticated")
        check_error(anyone.get(f"/v1/tickets/{'0' * 64}"), 401, "unauthenticated")
        check_error(anyone.post(f"{base}/files/ticket?path=/workspace"), 401, "unauthenticated")
    assert api.get("/v1/audit?action=file.ticket").json()["events"][0]["sandbox"] == base.split("/")[-1]


def test_of_many_who_have_a_ticket_one_gets_the_file(server, api, base):
    url, got = ticket(api, base, NAME), []

    def take():
        with closing(server.client("")) as anyone:
            got.append(anyone.get(url).status)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(got) == [200] + [401] * 7


def test_a_ticket_ends_with_its_key_and_its_sandbox(server, api, base):
    key = server.make_key("default")
    with closing(server.client(key)) as other, closing(server.client("")) as anyone:
        url = ticket(other, base, NAME)
        server.run("key", "revoke", other.get("/v1/console/me").json()["key_id"])
        wait_for(lambda: other.get("/v1/console/me").status == 401, 10, "the key's end")
        check_error(anyone.get(url), 401, "unauthenticated")
        url = ticket(api, base, NAME)
        assert api.delete(base).status == 204
        check_error(anyone.get(url), 404, "not_found")


def test_what_is_not_there_and_what_is_wrong(server, api, base):
    with closing(server.client("")) as anyone:
        check_error(anyone.get(ticket(api, base, "/workspace/none")), 404, "not_found")
        check_error(anyone.get(ticket(api, base, "/workspace")), 400, "invalid")
        check_error(anyone.get(ticket(api, base, NAME) + "?x=1"), 400, "invalid", field="x")
    check_error(api.post(f"{base}/files/ticket"), 400, "invalid", field="path")
    check_error(api.post(f"{base}/files/ticket?path=/x&user=nobody"), 400, "invalid", field="user")


def test_a_readers_ticket_is_no_use_of_the_sandbox(server, api, base):
    key = server.run("key", "create", "--reader").stdout.strip()
    with closing(server.client(key)) as reader, closing(server.client("")) as anyone:
        before = api.get(base).json()["last_used_at"]
        assert anyone.get(ticket(reader, base, NAME)).status == 200
        assert api.get(base).json()["last_used_at"] == before


# ---- links ----


@pytest.fixture
def web(api, sandbox):
    base = f"/v1/sandboxes/{sandbox}"
    assert api.post(f"{base}/processes", json={"argv": ["python3", "-m", "http.server", "8000"]}).status == 201
    wait_for(lambda: 8000 in [p["port"] for p in api.get(f"{base}/ports").json()["ports"]], 30, "the server listens")
    return base


def test_a_link_is_listed_and_revoked_alone(server, api, web):
    links = [api.post(f"{web}/ports/8000/preview", json={"by": "path"}).json() for _ in range(2)]
    path = [link["url"].split(f":{server.port}", 1)[1] for link in links]
    with closing(server.client("")) as anyone:
        assert [anyone.get(p).status for p in path] == [200, 200]
        listed = api.get(f"{web}/links").json()["links"]
        assert [entry["id"] for entry in listed] == [links[1]["id"], links[0]["id"]]
        assert all(entry["port"] == 8000 and entry["revoked_at"] is None and entry["made_by"] for entry in listed)
        assert "paddock_preview" not in str(listed)

        assert api.delete(f"{web}/links/{links[0]['id']}").status == 204
        assert api.delete(f"{web}/links/{links[0]['id']}").status == 204
        assert [anyone.get(p).status for p in path] == [401, 200]
        assert [bool(entry["revoked_at"]) for entry in api.get(f"{web}/links").json()["links"]] == [False, True]
        check_error(api.delete(f"{web}/links/{'0' * 16}"), 404, "not_found")

        server.kill()
        server.start()
        wait_for(lambda: anyone.get(path[1]).status == 200, 30, "the good one works again")
        assert anyone.get(path[0]).status == 401


def test_links_of_one_moment_are_several(api, web):
    """They are revoked one by one, so each has a token of its own, however quickly they were made."""
    made = [api.post(f"{web}/ports/8000/preview", json={"by": "path"}).json() for _ in range(40)]
    assert len({link["id"] for link in made}) == len({link["url"] for link in made}) == 40
    for link in made:
        assert api.delete(f"{web}/links/{link['id']}").status == 204


def test_a_revoked_link_ends_what_it_has_opened(server, api, web):
    script = ("import socket,time\ns=socket.create_server(('127.0.0.1',8001))\nc=s.accept()[0]\nc.recv(9999)\n"
              "c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 999999\\r\\n\\r\\nbegun')\ntime.sleep(1000)")
    assert api.post(f"{web}/processes", json={"argv": ["python3", "-c", script]}).status == 201
    wait_for(lambda: 8001 in [p["port"] for p in api.get(f"{web}/ports").json()["ports"]], 30, "it listens")
    link = api.post(f"{web}/ports/8001/preview", json={"by": "path"}).json()
    with Raw(api, timeout=60) as raw:
        raw.request("GET", link["url"].split(f":{server.port}", 1)[1], key=False)
        status, _ = raw.head()
        assert status == 200
        assert api.delete(f"{web}/links/{link['id']}").status == 204
        raw.rest()


def test_links_of_others_are_not_there(server, api, web):
    link = api.post(f"{web}/ports/8000/preview").json()
    with closing(server.client(server.make_key("strangers"))) as stranger:
        check_error(stranger.get(f"{web}/links"), 404, "not_found")
        check_error(stranger.delete(f"{web}/links/{link['id']}"), 404, "not_found")


# ---- every process ----


def test_the_tree_has_what_nobody_started_through_the_api(api, sandbox):
    base = f"/v1/sandboxes/{sandbox}"
    started = api.post(f"{base}/processes", json={"argv": [
        "bash", "-c", "exec -a '<b>odd name</b>' sleep 1000 & python3 -c 'x = bytearray(50 << 20); input()' < <(sleep 1000); wait"]}).json()

    def tree():
        return api.get(f"{base}/processes?tree=true&observe=true").json()["tree"]

    wait_for(lambda: any(p["memory_bytes"] > 50 << 20 for p in tree()), 30, "the large one")
    before = api.get(base).json()["last_used_at"]
    seen = {p["command"]: p for p in tree()}
    odd = seen["<b>odd name</b> 1000"]
    assert odd["parent_pid"] == started["pid"] and odd["state"] == "S" and odd["threads"] == 1
    assert any(p["pid"] == started["pid"] for p in seen.values())
    assert not any(p["command"].startswith("ps") for p in seen.values()), "the worker itself is left out"
    large = next(p for p in seen.values() if "bytearray" in p["command"] and p["command"].startswith("python3"))
    assert 50 << 20 < large["memory_bytes"] < 200 << 20 and 0 <= large["age_ms"] < 600_000 and large["uid"] == odd["uid"]
    assert api.get(base).json()["last_used_at"] == before, "looking is no use"
    assert "tree" not in api.get(f"{base}/processes").json()
    check_error(api.get(f"{base}/processes?tree=2"), 400, "invalid", field="tree")
    assert api.post(f"{base}/pause").status == 200
    check_error(api.get(f"{base}/processes?tree=true"), 409, "paused")
