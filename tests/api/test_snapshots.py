"""Snapshots and forks of the v1 API, and sandboxes that are made from them."""

from contextlib import closing

import pytest

from paddock_testing.server import Server, check_error


def run(api, sandbox, command):
    answer = api.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": command})
    assert answer.status == 200, answer
    return answer.json()["stdout"]


@pytest.fixture
def origin(api, make_sandbox):
    sandbox = make_sandbox(template="base", metadata={"a": "1"}, env={"SET": "here"}, idle_timeout_s=900)
    run(api, sandbox, "echo kept > /workspace/file; cd /tmp")
    return sandbox


@pytest.fixture
def snapshot(api, origin):
    made = api.post(f"/v1/sandboxes/{origin}/snapshots", json={"name": "point"})
    assert made.status == 201, made
    yield made.json()
    api.delete(f"/v1/snapshots/{made.json()['id']}")


def test_a_snapshot_is_listed_used_and_deleted(server, api, origin, snapshot, make_sandbox):
    assert snapshot["name"] == "point" and snapshot["sandbox_id"] == origin and snapshot["profile"] == "dev"
    assert snapshot in api.get("/v1/snapshots").json()["snapshots"]
    assert api.get(f"/v1/snapshots?sandbox_id={origin}").json() == {"snapshots": [snapshot], "next_cursor": None}
    assert api.get(f"/v1/snapshots?sandbox_id={'x' * 20}").json()["snapshots"] == []

    run(api, origin, "echo changed > /workspace/file")
    for how in (snapshot["id"], "point"):
        made = make_sandbox(snapshot=how)
        assert run(api, made, "cat /workspace/file") == "kept\n"
        shown = api.get(f"/v1/sandboxes/{made}").json()
        assert shown["profile"] == "dev" and shown["template"] == snapshot["id"]
    assert api.get(f"/v1/sandboxes/{make_sandbox(snapshot='point', template='default')}").json()["profile"] == "strict"
    by_command = server.run("create", "--snapshot", "point").stdout.strip()
    assert run(api, by_command, "cat /workspace/file") == "kept\n"
    assert api.delete(f"/v1/sandboxes/{by_command}").status == 204

    assert api.delete("/v1/snapshots/point").status == 204
    check_error(api.delete("/v1/snapshots/point"), 404, "not_found")
    check_error(api.post("/v1/sandboxes", json={"snapshot": "point"}), 400, "invalid", field="snapshot")


def test_pages_of_snapshots(api, origin):
    made = [api.post(f"/v1/sandboxes/{origin}/snapshots", json={}).json()["id"] for _ in range(3)]
    seen, cursor = [], ""
    while cursor is not None:
        page = api.get(f"/v1/snapshots?sandbox_id={origin}&limit=2{cursor and '&cursor=' + cursor}").json()
        seen += [s["id"] for s in page["snapshots"]]
        cursor = page["next_cursor"]
    assert seen == made[::-1]
    for snapshot in made:
        assert api.delete(f"/v1/snapshots/{snapshot}").status == 204


def test_a_fork_is_as_its_origin_and_goes_its_own_way(api, origin):
    forked = api.post(f"/v1/sandboxes/{origin}/fork", json={"metadata": {"b": "2"}})
    assert forked.status == 201, forked
    other = forked.json()
    try:
        assert other["id"] != origin and other["metadata"] == {"b": "2"} and other["profile"] == "dev"
        assert other["idle_timeout_s"] == 900 and other["template"] == "base"
        assert run(api, other["id"], "pwd; echo $SET; cat /workspace/file; echo theirs > /workspace/file") == "/tmp\nhere\nkept\n"
        assert run(api, origin, "cat /workspace/file") == "kept\n"
    finally:
        api.delete(f"/v1/sandboxes/{other['id']}")
    again = api.post(f"/v1/sandboxes/{origin}/fork").json()
    assert again["metadata"] == {"a": "1"}
    api.delete(f"/v1/sandboxes/{again['id']}")


@pytest.mark.parametrize("path, body, field", [
    ("/snapshots", {"name": "a b"}, "name"), ("/snapshots", {"name": ""}, "name"), ("/snapshots", {"nome": "a"}, "nome"),
    ("/fork", {"idle_timeout_s": 0}, "idle_timeout_s"), ("/fork", {"max_life_s": "x"}, "max_life_s"),
    ("/fork", {"metadata": {"a": 1}}, "metadata.a"), ("/fork", {"count": 2}, "count")])
def test_what_is_wrong_is_named(api, origin, path, body, field):
    check_error(api.post(f"/v1/sandboxes/{origin}{path}", json=body), 400, "invalid", field=field)


def test_a_templates_name_and_another_tenant(server, api, origin, snapshot):
    check_error(api.post(f"/v1/sandboxes/{origin}/snapshots", json={"name": "base"}), 409, "conflict", field="name")
    with closing(server.client(server.make_key("strangers"))) as stranger:
        assert stranger.get("/v1/snapshots").json()["snapshots"] == []
        check_error(stranger.delete(f"/v1/snapshots/{snapshot['id']}"), 404, "not_found")
        check_error(stranger.post("/v1/sandboxes", json={"snapshot": snapshot["id"]}), 400, "invalid", field="snapshot")
        check_error(stranger.post(f"/v1/sandboxes/{origin}/fork"), 404, "not_found")


def test_without_roots_on_disk_it_is_told():
    with Server({"storage": "memory"}) as server, closing(server.client()) as api:
        made = api.post("/v1/sandboxes").json()["id"]
        for path in ("fork", "snapshots"):
            check_error(api.post(f"/v1/sandboxes/{made}/{path}"), 501, "unsupported")


def test_by_command_line(server, api, origin, make_sandbox):
    def out(*arguments):
        result = server.run(*arguments)
        assert result.returncode == 0, result
        return result.stdout

    fork = out("fork", origin).strip()
    kept = out("snapshot", "create", origin, "from-cli").strip()
    made = out("create", "--snapshot", "from-cli").strip()
    try:
        assert [run(api, one, "cat /workspace/file") for one in (fork, made)] == ["kept\n"] * 2
        row = next(l for l in out("snapshot", "ls").splitlines() if kept in l)
        assert row.split()[1:3] == ["from-cli", origin]
        assert kept in out("snapshot", "ls", "--json")
        assert out("snapshot", "rm", "from-cli") == "" and kept not in out("snapshot", "ls")
        for wrong in (("snapshot", "rm", "from-cli"), ("snapshot",), ("fork",), ("snapshot", "create")):
            result = server.run(*wrong, check=False)
            assert result.returncode == (125 if "rm" in wrong else 2), result
    finally:
        for one in (fork, made):
            api.delete(f"/v1/sandboxes/{one}")
