"""Clients that make and delete the same rented sandboxes at the same time, while connections are cut: each call has one answer
that it may have, and in the end what is rented is what the server has. At night also while keepers die, and at Daytona.

PADDOCK_NIGHTLY=1 plays 2,000 rounds with each."""

import contextlib
import os
import random
import signal
import threading
import time

import pytest

from paddock_testing import daytona
from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.cutter import Cutter
from paddock_testing.rented import Landlord
from test_daytona import tenant as daytona_tenant
from test_docker_kill import keeper_of
from test_e2b import tenant as e2b_tenant

ROUNDS = paddock.rounds(24, 2000, 12)
NAMES = 3
CLIENTS = 2
# Refused for the moment, by a keeper that has just died or a connection that was just cut.
AGAIN = (502, 503, 504)


class Player(threading.Thread):
    def __init__(self, server, provider, seed, rounds):
        super().__init__()
        self.api, self.provider, self.random, self.rounds = server.client(), provider, random.Random(seed), rounds
        self.told, self.wrong = {}, None

    def count(self, what, answer, expected):
        assert answer.status in expected, (what, answer)
        self.told[what, answer.status] = self.told.get((what, answer.status), 0) + 1
        if answer.status in AGAIN:
            time.sleep(0.3)

    def play(self):
        path = f"/v1/sessions/u/t{self.random.randrange(NAMES)}"
        what = self.random.choice(["make", "make", "delete", "use"])
        if what == "make":
            self.count(what, self.api.put(path, json={"provider": self.provider}), (200, 201, 409, *AGAIN))
        elif what == "delete":
            self.count(what, self.api.delete(path), (204, 404))
        elif (there := self.api.get(path)).status == 200:
            self.count(what, self.api.post(f"/v1/sandboxes/{there.json()['id']}/exec", json={"command": "true"}),
                       (200, 404, 409, 410, *AGAIN))

    def run(self):
        try:
            for _ in range(self.rounds):
                self.play()
        except BaseException as e:  # told by the test
            self.wrong = e
        finally:
            self.api.close()


@contextlib.contextmanager
def at_e2b():
    with Landlord() as landlord:
        way = Cutter(landlord.port)
        server = e2b_tenant(landlord, f"https://127.0.0.1:{way.address[1]}")
        try:
            yield server, way.cut, landlord.rented, landlord
        finally:
            server.close()
            way.close()


@contextlib.contextmanager
def at_daytona():
    if reason := daytona.why_not():
        pytest.skip(f"no Daytona here: {reason}")
    with daytona.Daytona() as landlord:
        server = daytona_tenant(landlord)
        try:
            yield server, landlord.cut, landlord.live, landlord
        finally:
            server.close()


KINDS = {"e2b": at_e2b, "daytona": at_daytona}


@pytest.mark.parametrize("keepers_die", [False, True] if paddock.NIGHTLY else [False])
@pytest.mark.parametrize("kind", KINDS if paddock.NIGHTLY else ["e2b"])
def test_makers_and_deleters_of_the_same_names(kind, keepers_die):
    with KINDS[kind]() as (server, cut, rented, landlord):
        players = [Player(server, kind, seed, ROUNDS // CLIENTS) for seed in range(CLIENTS)]
        for p in players:
            p.start()
        chance = random.Random(7)
        while any(p.is_alive() for p in players):
            time.sleep(chance.uniform(0, 0.6))
            cut()
            if keepers_die and chance.random() < 0.1:
                server.note_instances()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(keeper_of(server, kind), signal.SIGKILL)
        for p in players:
            p.join()
            assert p.wrong is None, f"{p.wrong!r}\n{server.log()[-3000:]}"
        told = {key: sum(p.told.get(key, 0) for p in players) for p in players for key in p.told}
        print(kind, keepers_die, told)
        assert told.get(("make", 201)) and told.get(("delete", 204)), told

        with contextlib.closing(server.client()) as api:
            def live():
                return sorted(s["id"] for s in api.get("/v1/sandboxes").json()["sandboxes"]
                              if s["state"] == "running" and s["provider"] == kind)

            paddock.wait_for(lambda: len(rented()) == len(live()), 60, "server and landlord agree")
            for box in live():
                run = api.post(f"/v1/sandboxes/{box}/exec", json={"command": "echo alive"}).json()
                assert run["stdout"] == "alive\n", run
            for n in range(NAMES):
                assert api.delete(f"/v1/sessions/u/t{n}").status in (204, 404)
        landlord.await_none("nothing is left")
        assert not [p for p in host.pids() if host.read_proc(p, "comm") == "paddock-standin\n"
                    and server.state_dir in " ".join(host.command_line(p))]
