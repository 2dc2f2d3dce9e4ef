"""Sandboxes with a way out that were ready in advance: whoever takes one has his own rules in it and nothing else, from its
first command on; until then it is nobody's, and nobody's rules hold in it.
"""

import os

import pytest
from paddock_testing.internet import ServerInside
from paddock_testing.run import rounds, seconds, wait_for

from .way_out import beside, check, open_files

GET = f"curl -sSf -m {int(seconds(60))} "
A, B = {"allow": ["a.example"]}, {"allow": ["b.example"]}


@pytest.fixture(scope="module")
def server(internet):
    os.chmod(internet.dir, 0o711)
    with ServerInside(internet, {"pool_min": 2, "pool_max": 3, "egress_ca": f"{internet.dir}/cert"}) as s:
        assert s.client().put("/v1/secrets/prod", json={"value": "sesame-4711"}).status == 200
        yield s


@pytest.fixture
def client(server):
    return server.client()


def create(client, network, **more):
    r = client.post("/v1/sandboxes", json={"network": network, **more})
    assert r.status == 201, r
    return r.json()


def taken(client, network, **more):
    """One from the pool, which is filled for such from the first that is asked for on."""
    def take():
        made = create(client, network, **more)
        if made["from_pool"]:
            return made["id"]
        client.delete(f"/v1/sandboxes/{made['id']}")
        return None
    return wait_for(take, 60, "one is ready")


def works(client, sandbox, line):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line]})
    assert r.status == 200, r
    return r.json()["exit_code"] == 0


def test_each_has_its_own_rules_from_the_first_command_on(client):
    for i in range(rounds(6, 300)):
        rules, mine, other = ((A, "a", "b"), (B, "b", "a"))[i % 2]
        s = taken(client, rules)
        assert works(client, s, f"{GET} http://{mine}.example/")
        assert not works(client, s, f"{GET} http://{other}.example/")
        check(client, s)
        client.delete(f"/v1/sandboxes/{s}")


def test_it_is_as_one_that_was_made_for_it(server, client):
    """Its connections are its tenant's, its secrets work, and its certificates are where they are in others."""
    other = server.client(server.make_key("other"))
    s = taken(other, {**A, "secrets": []})
    assert works(other, s, GET + "https://a.example/")
    entries = wait_for(lambda: other.get(f"/v1/sandboxes/{s}/network/log").json()["entries"], 30, "it is told")
    assert entries[0]["result"] == "ok"
    assert client.get(f"/v1/sandboxes/{s}").status == 404
    other.delete(f"/v1/sandboxes/{s}")

    s = taken(client, {**B, "secrets": [{"env": "KEY", "secret": "prod", "hosts": ["b.example"]}]})
    line = GET + '-H "X-Key: $KEY" https://b.example/echo | grep -F "X-Key: ***"'
    assert works(client, s, line) and works(client, s, "test -e /etc/ssl/certs || ! test -e /etc/ssl")
    assert client.put(f"/v1/sandboxes/{s}/network", json=A).status == 200
    check(client, s)
    client.delete(f"/v1/sandboxes/{s}")


def test_without_rules_none_is_taken_that_has_a_way_out(client):
    s = taken(client, A)
    client.delete(f"/v1/sandboxes/{s}")
    made = client.post("/v1/sandboxes", json={}).json()["id"]
    assert not works(client, made, "exec 3<>/dev/tcp/203.0.113.7/80")
    told = client.post(f"/v1/sandboxes/{made}/exec", json={"argv": ["bash", "-c", "exec 3<>/dev/tcp/203.0.113.7/80"]}).json()
    assert "unreachable" in told["stderr"], told
    client.delete(f"/v1/sandboxes/{made}")


def test_at_e2bs_door(server, client):
    def take():
        status, made = server.e2b("POST", "/v2/sandboxes", {"templateID": "base", "network": {"denyOut": ["0.0.0.0/0"],
                                                                                            "allowOut": ["a.example"]}})
        assert status == 201, made
        if client.get(f"/v1/sandboxes/{made['sandboxID']}").json()["from_pool"]:
            return made["sandboxID"]
        client.delete(f"/v1/sandboxes/{made['sandboxID']}")
        return None
    s = wait_for(take, 60, "one is ready")
    assert works(client, s, GET + "http://a.example/") and not works(client, s, GET + "http://b.example/")
    client.delete(f"/v1/sandboxes/{s}")


def test_a_killed_gate_and_server_leave_nothing_of_those_that_wait(internet):
    with ServerInside(internet, {"pool_min": 2, "pool_max": 3}) as server:
        s = taken(server.client(), A)
        (gate,) = wait_for(server.gates, 30, "there is a gate")
        os.kill(gate, 9)
        assert works(server.client(), s, GET + "http://a.example/")
        t = taken(server.client(), B)
        check(server.client(), t)
        server.kill()
        server.start()
        for each in (s, t):
            check(server.client(), each)
            server.client().delete(f"/v1/sandboxes/{each}")
        check(server.client(), taken(server.client(), B))


def test_many_who_take_against_changes_of_the_ceiling_and_the_end(server, client):
    (gate,) = wait_for(server.gates, 30, "there is a gate")
    for _ in range(rounds(3, 300)):
        made = beside(*[lambda rules=rules: server.client().post("/v1/sandboxes", json={"network": rules}) for rules in (A, B, A, B)],
                      lambda: server.client().put("/v1/secrets/prod", json={"value": "sesame-4711"}))
        for r, rules in zip(made, (A, B, A, B)):
            assert r.status == 201, r
            check(client, r.json()["id"])
            assert client.get(f"/v1/sandboxes/{r.json()['id']}/network").json()["allow"] == rules["allow"]
        for ended in beside(*[lambda r=r: server.client().delete(f"/v1/sandboxes/{r.json()['id']}") for r in made[:4]]):
            assert ended.status == 204, ended
    # Those that wait are at most three of two sorts, with two sockets each.
    few = 2 * 2 * 3 + 40
    wait_for(lambda: open_files(gate) <= few, 60, "the gate has the sockets of those that wait, and no others")
