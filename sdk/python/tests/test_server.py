"""`Server`: keys, the audit log, copies, links and lists, against a real server."""

import urllib.error
import urllib.request

import pytest
from paddock import DeniedError, NotFoundError, Sandbox, Server


@pytest.fixture
def house(server, use):
    use(server)
    with Server() as made:
        yield made


@pytest.fixture
def admin(server):
    with Server(server.url, server.run("key", "create", "--admin").stdout.strip()) as made:
        yield made


@pytest.fixture
def box(house):
    with Sandbox.create(metadata={"of": "test_server"}) as made:
        yield made


def test_what_was_done_is_told(house, box):
    box.commands.run("echo told")
    assert [e["action"] for e in house.audit(sandbox=box.sandbox_id)] == ["exec", "sandbox.create"]
    assert len(list(house.audit(sandbox=box.sandbox_id, limit=1))) == 1
    assert [e["command"] for e in house.audit(sandbox=box.sandbox_id, action="exec")] == ["/bin/bash -l -c echo told"]
    with pytest.raises(DeniedError):
        list(house.audit(tenant="*"))


def test_sandboxes_are_counted_and_found(house, box):
    assert house.overview()["tenant"]["sandboxes"]["running"] >= 1
    assert [s.id for s in house.sandboxes(f"TEST_SERVER {box.sandbox_id}")] == [box.sandbox_id]
    assert next(house.sandboxes(newest_first=True)).id == box.sandbox_id
    assert (house.count(box.sandbox_id), house.count(box.sandbox_id, state="paused")) == (1, 0)


def test_keys_are_made_and_revoked(server, house, admin):
    made = admin.create_key("of a test", role="reader")
    with Server(server.url, made["key"]) as reader:
        assert reader.me()["role"] == "reader"
        with pytest.raises(DeniedError):
            reader.keys()
    assert next(k for k in admin.keys() if k["id"] == made["id"])["label"] == "of a test"
    admin.revoke_key(made["id"])
    assert next(k for k in admin.keys() if k["id"] == made["id"])["revoked_at"]
    with pytest.raises(DeniedError):
        house.create_key()
    assert admin.overview()["server"]["since_start"]["created"] >= 0


def test_copies(house, box):
    box.files.write("kept.txt", "kept")
    fork = house.fork(box.sandbox_id, metadata={"attempt": "2"})
    kept = house.create_snapshot(box.sandbox_id, "of-a-test")
    try:
        assert fork.metadata == {"attempt": "2"}
        assert Sandbox.connect(fork.id).files.read("kept.txt") == "kept"
        assert [s["id"] for s in house.snapshots(box.sandbox_id)] == [kept["id"]]
    finally:
        Sandbox.connect(fork.id).kill()
        house.delete_snapshot("of-a-test")
    with pytest.raises(NotFoundError):
        house.delete_snapshot("of-a-test")


def test_processes_usage_links_and_tickets(house, box):
    box.commands.run("sleep 4711", background=True)
    assert any("sleep 4711" in p["command"] for p in house.processes(box.sandbox_id))
    assert isinstance(house.usage_history(box.sandbox_id), list)
    box.get_url(8000)
    (link,) = house.links(box.sandbox_id)
    house.revoke_link(box.sandbox_id, link["id"])
    assert house.links(box.sandbox_id)[0]["revoked_at"]

    box.files.write("report.txt", "ours")
    url = house.ticket(box.sandbox_id, "/workspace/report.txt")
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read() == b"ours"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(url, timeout=30)


def test_templates_rules_and_the_console(house, admin):
    assert "default" in [t["name"] for t in house.templates()]
    assert house.rules().get("rules") is None and admin.rules()["rules"] is not None
    assert admin.set_rules(admin.rules()["rules"])
    assert "#code=" in house.console_link()
