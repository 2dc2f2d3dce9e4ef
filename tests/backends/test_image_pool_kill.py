"""kill -9 of daemon, keeper and broker while containers wait in the pool, are made for it and taken from it.

Whoever was killed: the engine has one container for each sandbox that lives and each that the server says is
ready, and nobody gets one that somebody else had.
"""

import http.client
import random
import threading
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import check_error
from test_docker_kill import ALONE, delete_strays, kill
from test_image_pool import pool_of
from breaking import Victim  # test_docker_kill has put its directory on the path


@pytest.fixture(scope="module", name="victims")
def _victims(dockerd, images):  # images: none is pulled
    """A client that tries again and again would open the breaker: that is tested elsewhere."""
    with pool_of(dockerd, Victim, image_pool=2) as p:
        admin = p.server.client(p.server.run("key", "create", "--admin", "--tenant", "ops").stdout.strip())
        answer = admin.put("/v1/router", json={"breaker": {"open_s": 1, "open_max_s": 1}})
        assert answer.status == 200, answer
        yield p


@pytest.fixture(name="pool")
def _pool(victims, images):
    """A server with a full pool."""
    victims.delete(victims.create(images["bash"]))
    victims.wait(2)
    victims.wait_containers(2, "there are no others")
    return victims


def try_create(pool, image):
    """A sandbox, or None while somebody is replaced."""
    answer = pool.server.client().post("/v1/sandboxes", json={"provider": "docker", "image": image})
    if answer.status == 201:
        return answer.json()
    check_error(answer, 503, ["capacity", "lost"])
    return None


def check_engine(pool, sandboxes):
    """One container for each sandbox, and for each that is ready."""
    def only_ours():
        told = pool.told()
        return (not told["filling"] and len(pool.containers()) == len(pool.running()) == sandboxes + told["ready"]
                and pool.told() == told)
    paddock.wait_for(only_ours, 90, f"{sandboxes} containers and those that are ready")


@pytest.mark.parametrize("victim", [*ALONE, "everybody"])
def test_nothing_is_left_and_the_pool_comes_back(pool, images, victim):
    box = pool.create(images["bash"])
    assert box["from_pool"]
    waiting = pool.running()
    kill(pool.server, victim)
    lives = victim in ("daemon", "broker")
    pool.api = pool.server.client()
    if lives:
        assert pool.exec(box, "echo", "x") == "x\n"
    check_engine(pool, 1 if lives else 0)
    if victim != "broker":  # those of a server or a keeper that is gone are nobody's any more
        paddock.wait_for(lambda: len(waiting & pool.running()) <= (1 if lives else 0), 60, "they are gone")

    fresh = paddock.wait_for(lambda: try_create(pool, images["bash"]), 60, "a sandbox can be made")
    assert pool.exec(fresh, "echo", "x") == "x\n"
    pool.wait(2, "the pool comes back")
    check_engine(pool, 2 if lives else 1)
    pool.delete(fresh, *([box] if lives else []))
    check_engine(pool, 0)


class Taker(threading.Thread):
    """Takes sandboxes and gives them back until told: each has a mark that only its first user can make."""

    def __init__(self, pool, image):
        super().__init__()
        self.pool, self.image = pool, image
        self.over, self.taken, self.wrong = threading.Event(), 0, []
        self.start()

    def run(self):
        while not self.over.is_set() and not self.wrong:
            try:
                box = try_create(self.pool, self.image)
                if box:
                    self.use(box)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # no server
            except AssertionError as error:
                self.wrong.append(error)

    def use(self, box):
        api = self.pool.server.client()
        mark = api.post(f"/v1/sandboxes/{box['id']}/exec",
                        json={"argv": ["sh", "-c", "set -C; echo x >/tmp/mark && ls /workspace"]})
        if mark.status == 200 and not mark.json()["stopped_by"]:
            told = mark.json()
            assert (told["exit_code"], told["stdout"]) == (0, ""), f"somebody had it: {told}"
            self.taken += 1
        api.delete(f"/v1/sandboxes/{box['id']}")


def test_takers_while_everybody_dies(pool, images):
    takers = [Taker(pool, images["bash"]) for _ in range(2)]
    try:
        for number in range(paddock.rounds(4, 100, 3)):
            victim = ALONE[number % 3] if number < 3 else random.choice(ALONE)
            print(f"round {number}: {victim}", flush=True)
            before = [t.taken for t in takers]
            paddock.wait_for(lambda b=before: any(t.wrong for t in takers) or
                             all(t.taken > n for t, n in zip(takers, b)), 120, "they take some")
            time.sleep(random.uniform(0, 0.3))
            kill(pool.server, victim)
    finally:
        for taker in takers:
            taker.over.set()
        for taker in takers:
            taker.join(paddock.seconds(120))
    assert not any(t.wrong for t in takers), [t.wrong for t in takers]
    pool.api = pool.server.client()
    delete_strays(pool.server, [])
    check_engine(pool, 0)
