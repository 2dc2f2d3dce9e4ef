"""Clients that make sandboxes whose image is pulled, move others there and delete all of them, at the same time and
at any moment: each call has one answer that it may have, and what the server has are the engine's containers.

PADDOCK_NIGHTLY=1 plays 4,000 rounds."""

import contextlib
import random
import select
import threading

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Server
from test_pull import Slow

NAMES = 3
CLIENTS = 3


class Paced(Slow):
    """Pulls that take a while of their own, unless their client goes away before."""

    longest_s = 0.3

    def may_go_on(self, client, go):
        with self.lock:
            pause = self.random.uniform(0, self.longest_s)
        return not select.select([client], [], [], pause)[0]

    def __init__(self, engine, directory):
        self.random, self.lock = random.Random(1), threading.Lock()
        super().__init__(engine, directory)


@pytest.fixture(scope="module")
def paced(dockerd, tmp_path_factory):
    proxy = Paced(dockerd, str(tmp_path_factory.mktemp("proxy")))
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def server(paced, images):
    settings = {"providers": "jail,docker", "docker_host": paced.host, "image_pull": "always",
                "default_image": images["sh"], "pool_min": 0, "pool_max": 0, "requests_per_s": 0, "creates_per_s": 0}
    with Server(settings) as s:
        yield s


class Player(threading.Thread):
    """Makes, moves and deletes; `told` counts the answers, by what was asked."""

    def __init__(self, server, seed, rounds):
        super().__init__()
        self.api, self.random, self.rounds = server.client(), random.Random(seed), rounds
        self.told, self.wrong = {}, None

    def count(self, what, answer, expected):
        assert answer.status in expected, (what, answer)
        self.told[what, answer.status] = self.told.get((what, answer.status), 0) + 1

    def play(self):
        path = f"/v1/sessions/u/t{self.random.randrange(NAMES)}"
        what = self.random.choice(["make", "move", "delete"])
        if what == "delete":
            self.count(what, self.api.delete(path), (204, 404))
        elif what == "make":
            provider = self.random.choice(["jail", "docker"])
            self.count(what, self.api.put(path, json={"provider": provider}), (200, 201, 409))
        else:
            # 410: it has ended, and is remembered. 409: it is being made, another move goes on, or it was given up.
            there = self.api.get(path)
            assert there.status in (200, 404), there
            if there.status == 200:
                url, to = f"/v1/sandboxes/{there.json()['id']}/move", self.random.choice(["docker", "docker", "jail"])
                self.count(what, self.api.post(url, json={"provider": to}), (200, 404, 409, 410))

    def run(self):
        try:
            for _ in range(self.rounds):
                self.play()
        except BaseException as e:  # told by the test
            self.wrong = e
        finally:
            self.api.close()


def test_whoever_is_first(server, paced, dockerd):
    players = [Player(server, seed, paddock.rounds(60, 4000, 30) // CLIENTS) for seed in range(CLIENTS)]
    for p in players:
        p.start()
    for p in players:
        p.join()
    for p in players:
        assert p.wrong is None, f"{p.wrong!r}\n{server.log()[-3000:]}"
    told = {key: sum(p.told.get(key, 0) for p in players) for p in players for key in p.told}
    print(told, f"{paced.left} of {paced.begun} pulls were given up")
    assert told["make", 201] and told["delete", 204] and told["move", 200] and paced.begun

    with contextlib.closing(server.client()) as api:
        def live(provider):
            listed = api.get("/v1/sandboxes").json()["sandboxes"]
            return sorted(s["id"] for s in listed if s["state"] == "running" and s["provider"] == provider)

        paddock.wait_for(lambda: len(dockerd.containers()) == len(live("docker")), 60, "server and engine agree")
        for box in live("docker") + live("jail"):
            run = api.post(f"/v1/sandboxes/{box}/exec", json={"command": "echo alive"}).json()
            assert run["stdout"] == "alive\n", run
        for n in range(NAMES):
            assert api.delete(f"/v1/sessions/u/t{n}").status in (204, 404)
        paddock.wait_for(lambda: not dockerd.containers(), 60, "no container is left")
        assert not live("docker") + live("jail")
