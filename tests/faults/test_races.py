"""Clients that make and delete the same sandboxes at the same time: each is counted once, none runs
after its end, nothing of it stays on the disk.

PADDOCK_NIGHTLY=1 plays 20,000 rounds with each number of clients, for each kind of server."""

import os
import random
import threading

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Server

ROUNDS = 20000 if os.environ.get("PADDOCK_NIGHTLY") == "1" else 120
NAMES = 4
POOL = {"cold": 0, "pool": 4}
# What the pool does not keep ready; with a pool half of the creations take from it.
UNUSUAL = {"limits": {"pids": 77}}


def metric(api, name):
    """The sum of its series."""
    lines = [line.split() for line in api.get("/metrics").text.splitlines()]
    return sum(float(line[1]) for line in lines
               if len(line) == 2 and line[0].split("{")[0] == name)


@pytest.fixture(scope="module", params=["disk cold", "disk pool", "memory cold", "memory pool"])
def server(request):
    storage, pool = request.param.split()
    with Server({"storage": storage, "pool_max": POOL[pool], "requests_per_s": 0, "creates_per_s": 0,
                 "max_sandboxes": 40, "max_sandboxes_per_tenant": 40}) as s:
        yield s


class Player(threading.Thread):
    """Makes and deletes; what it was told is in `told`."""

    def __init__(self, server, seed, rounds):
        super().__init__()
        self.api = server.client()
        self.random = random.Random(seed)
        self.rounds = rounds
        self.told = {"made": 0, "found": 0, "cancelled": 0, "deleted": 0, "missing": 0}
        self.deleted = set()
        self.wrong = None

    def make(self, path):
        answer = self.api.put(path, json=UNUSUAL if self.random.random() < 0.5 else {})
        kind = {201: "made", 200: "found", 409: "cancelled"}.get(answer.status)
        assert kind, answer
        self.told[kind] += 1

    def delete(self, path):
        there = self.api.get(path)
        answer = self.api.delete(path)
        assert answer.status in (204, 404), answer
        self.told["deleted" if answer.status == 204 else "missing"] += 1
        assert there.status in (200, 404), there

    def run(self):
        try:
            for _ in range(self.rounds):
                path = f"/v1/sessions/u/t{self.random.randrange(NAMES)}"
                if self.random.random() < 0.5:
                    self.make(path)
                else:
                    self.delete(path)
        except BaseException as e:  # told by the test
            self.wrong = e
        finally:
            self.api.close()


@pytest.mark.parametrize("clients", [2, 4, 8])
def test_makers_and_deleters_of_the_same_names(server, clients):
    players = [Player(server, seed, ROUNDS // clients) for seed in range(clients)]
    for p in players:
        p.start()
    for p in players:
        p.join()
    for p in players:
        assert p.wrong is None, f"{p.wrong!r}\n{server.log()[-3000:]}"
    told = {kind: sum(p.told[kind] for p in players) for kind in players[0].told}
    assert told["made"] and told["deleted"], told

    # What is left is deleted: then nothing is counted, and there is no jail but the pool's.
    api = server.client()
    for n in range(NAMES):
        assert api.delete(f"/v1/sessions/u/t{n}").status in (204, 404)
    listed = api.get("/v1/sandboxes").json()["sandboxes"]
    assert not [s for s in listed if s["state"] != "gone"], listed
    paddock.wait_for(lambda: metric(api, "paddock_boxes") == metric(api, "paddock_pool_ready"),
                     30, "the jails at the keeper are those of the pool")
    assert metric(api, "paddock_box_mismatches_total") == 0

    # Every place is free again: so many can be made as at the start, and one more cannot.
    if clients == 8:
        made = [api.post("/v1/sandboxes", json=UNUSUAL) for _ in range(40)]
        assert {m.status for m in made} == {201}, [m for m in made if m.status != 201][0]
        assert api.post("/v1/sandboxes", json={**UNUSUAL, "queue_timeout_s": 0}).status == 503
        for m in made:
            assert api.delete(f"/v1/sandboxes/{m.json()['id']}").status == 204
    print(f"\n{clients} clients, {ROUNDS} rounds: {told}")
    api.close()
