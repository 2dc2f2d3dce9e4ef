"""Snapshots carry the rules of their sandbox's way out: what is made from one has them, unless its request says otherwise,
and never more than the operator allows at that time.
"""

import signal

import pytest
from paddock_testing.internet import ServerInside
from paddock_testing.run import wait_for

from .way_out import check, reaches

A, B, OPEN, OFF = {"allow": ["a.example"]}, {"allow": ["b.example"]}, {"mode": "open"}, {"mode": "off"}


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet) as s:
        yield s


@pytest.fixture
def client(server):
    return server.client()


def create(client, **more):
    r = client.post("/v1/sandboxes", json=more)
    assert r.status == 201, r
    return r.json()["id"]


def snapshot(client, sandbox):
    r = client.post(f"/v1/sandboxes/{sandbox}/snapshots", json={})
    assert r.status == 201, r
    return r.json()["id"]


def rules(client, sandbox):
    told = client.get(f"/v1/sandboxes/{sandbox}/network").json()
    return told["mode"], told.get("allow", [])


def both(client, sandbox):
    return [reaches(client, sandbox, name) for name in ("a.example", "b.example")]


def set_config(server, text):
    with open(server.config, "w") as f:
        f.write(text)
    server.send_signal(signal.SIGHUP)


def test_what_is_made_from_one_has_its_rules(server, client):
    s, plain = create(client, network=A), create(client)
    kept, none = snapshot(client, s), snapshot(client, plain)
    # It has those of its own moment, of a sandbox that has other ones or is gone, also when the server was killed meanwhile.
    assert client.put(f"/v1/sandboxes/{s}/network", json=B).status == 200
    client.delete(f"/v1/sandboxes/{s}")
    for kill in (False, True):
        if kill:
            server.kill()
            server.start()
            client = server.client()
        made = create(client, snapshot=kept)
        assert rules(client, made) == ("list", ["a.example"])
        check(client, made)
        assert both(client, made) == [True, False]
        client.delete(f"/v1/sandboxes/{made}")
    # What the request says goes first, also that there is to be none; and what had none gives none.
    for asked, snap, want in ((B, kept, [False, True]), (OFF, kept, [False, False]), (None, none, [False, False])):
        made = create(client, snapshot=snap, **({"network": asked} if asked else {}))
        assert both(client, made) == want, (asked, want)
        client.delete(f"/v1/sandboxes/{made}")
    client.delete(f"/v1/sandboxes/{plain}")
    for each in (kept, none):
        assert client.delete(f"/v1/snapshots/{each}").status == 204


def test_it_gives_no_more_than_the_operator_allows_by_then(internet):
    """A snapshot from a time when everything was open. The control is the same creation at that time."""
    with ServerInside(internet, {"egress_allow": "b.example"}) as server:
        client = server.client()
        s = create(client, network=OPEN)
        kept = snapshot(client, s)
        made = create(client, snapshot=kept)
        assert both(client, s) == both(client, made) == [True, True]

        set_config(server, "tenant_egress = default=list\n")
        wait_for(lambda: not reaches(client, s, "a.example"), 30, "the ceiling holds")
        for each in (made, create(client, snapshot=kept)):
            assert both(client, each) == [False, True]
        fork = client.post(f"/v1/sandboxes/{made}/fork", json={}).json()["id"]
        assert both(client, fork) == [False, True]
        assert server.e2b("POST", f"/sandboxes/{made}/pause", {"memory": False})[0] == 204
        assert server.e2b("POST", f"/sandboxes/{made}/resume", {"timeout": 600})[0] == 201
        assert both(client, made) == [False, True]

        set_config(server, "tenant_egress = default=off\n")
        wait_for(lambda: not reaches(client, s, "b.example"), 30, "the ceiling holds")
        bare = create(client, snapshot=kept)
        assert rules(client, bare)[0] == "off" and both(client, bare) == [False, False]
        r = client.post("/v1/sandboxes", json={"snapshot": kept, "network": OPEN})
        assert r.status == 403, r
        assert client.delete(f"/v1/snapshots/{kept}").status == 204


def test_a_server_without_ways_out_makes_it_without_one(internet):
    with ServerInside(internet) as server:
        client = server.client()
        kept = snapshot(client, create(client, network=OPEN))
        server.stop()
        server.settings["egress"] = "off"
        server.start()
        client = server.client()
        made = create(client, snapshot=kept)
        assert rules(client, made)[0] == "off" and both(client, made) == [False, False]
        assert client.delete(f"/v1/snapshots/{kept}").status == 204


def test_a_secret_of_its_rules_that_is_gone(server, client):
    assert client.put("/v1/secrets/prod", json={"value": "sesame-4711"}).status == 200
    secret = {"env": "KEY", "secret": "prod", "hosts": ["b.example"]}
    s = create(client, network={"allow": ["a.example", "b.example"], "secrets": [secret]})
    kept = snapshot(client, s)
    made = create(client, snapshot=kept)
    assert client.get(f"/v1/sandboxes/{made}/network").json()["secrets"] == [secret]
    assert client.delete("/v1/secrets/prod").status == 204
    fork = client.post(f"/v1/sandboxes/{s}/fork", json={})
    again = client.post("/v1/sandboxes", json={"snapshot": kept})
    assert again.status == fork.status, (again, fork)  # as of a fork of one whose secret is gone
    for each in (s, made, *(r.json()["id"] for r in (fork, again) if r.status == 201)):
        client.delete(f"/v1/sandboxes/{each}")
    assert client.delete(f"/v1/snapshots/{kept}").status == 204
