"""An engine that fails in every way: slow, 429, 500, half an answer, none, success after the time-out. Server,
keeper and brokers are the real ones; the engine is a double that fails by a seed. After each batch the live
sandboxes of the server are the containers of the engine: no orphan, no double, one answer to each request.

PADDOCK_NIGHTLY=1 plays 2,000 rounds; tests/unit/test_provider_faults.c plays 10,000 with a cheaper broker."""

import contextlib
import os
import random
import threading

import pytest

from paddock_testing import broker as brokers
from paddock_testing import engine_double
from paddock_testing.run import wait_for
from paddock_testing.server import Server

ROUNDS = int(os.environ.get("PADDOCK_FAULT_ROUNDS") or (2000 if os.environ.get("PADDOCK_NIGHTLY") == "1" else 80))
BATCH = 40
MAKERS = 4

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the containers are real namespaces")


@contextlib.contextmanager
def a_double(**more):
    double = engine_double.EngineDouble(**more)
    try:
        yield double
    finally:
        double.close()


class Maker(threading.Thread):
    """Makes sandboxes and deletes most of them; `live` are those that it was told of and has not deleted."""

    def __init__(self, server, seed, rounds):
        super().__init__()
        self.random, self.rounds = random.Random(seed), rounds
        self.api, self.live, self.answers, self.wrong = server.client(), [], {}, []

    def run(self):
        for _ in range(self.rounds):
            made = self.api.post("/v1/sandboxes", json={"provider": "docker", "image": engine_double.IMAGE})
            self.answers[made.status] = self.answers.get(made.status, 0) + 1
            if made.status == 201:
                self.live.append(made.json()["id"])
            elif made.status not in (429, 500, 502, 503, 504):
                self.wrong.append(made)
            while self.live and self.random.random() < 0.6:
                self.delete(self.live.pop())

    def delete(self, box):
        gone = self.api.delete(f"/v1/sandboxes/{box}")
        if gone.status not in (204, 404):
            self.wrong.append(gone)

    def finish(self):
        while self.live:
            self.delete(self.live.pop())
        self.api.close()


def running(server):
    """Sandboxes that the server has, by any name."""
    with contextlib.closing(server.client()) as api:
        return {s["id"] for s in api.get("/v1/sandboxes").json()["sandboxes"] if s["state"] == "running"}


def agree(server, double, makers):
    live = {box for m in makers for box in m.live}
    return not double.is_busy() and running(server) == live and len(double.containers()) == len(live)


def await_agreement(server, double, makers):
    try:
        wait_for(lambda: agree(server, double, makers), 120, "server and engine agree")
    except AssertionError as e:
        raise AssertionError(f"{e}: live {[m.live for m in makers]}, server {running(server)}, "
                             f"engine {double.containers()}") from None


def test_no_orphan_and_no_double():
    settings = {"providers": "jail,docker", "image_pull": "never", "storage": "memory", "pool_max": 0,
                "requests_per_s": 0, "creates_per_s": 0}
    with a_double(seed=7) as double, Server({**settings, "docker_host": double.host}) as server:
        double.share = 0.12
        answers = {}
        for batch in range(max(1, ROUNDS // BATCH)):
            makers = [Maker(server, batch * MAKERS + i, BATCH // MAKERS) for i in range(MAKERS)]
            for m in makers:
                m.start()
            for m in makers:
                m.join()
            await_agreement(server, double, makers)
            for m in makers:
                m.finish()
                assert not m.wrong, m.wrong
                for status, count in m.answers.items():
                    answers[status] = answers.get(status, 0) + count
        await_agreement(server, double, [])
        print(answers, double.met)
        assert sum(answers.values()) == max(1, ROUNDS // BATCH) * BATCH
        assert answers[201] > ROUNDS // 4 and all(double.met.values()), (answers, double.met)


def test_a_container_that_comes_when_nobody_waits_any_more_is_ended():
    """It is made after the broker gave up, looked for it and found nothing."""
    with a_double() as double:
        b = brokers.Broker(double, "--pull", "never")
        try:
            original = double.draw
            double.draw = lambda target: "late" if "/containers/create" in target else original(target)
            double.let_go.clear()
            answer, _ = b.build("one", image=engine_double.IMAGE)
            assert answer.code == "bad_gateway" and b.sweep("one").kind == "DONE", answer
            assert double.is_busy() and not double.containers()

            double.draw = original
            double.let_go.set()
            wait_for(lambda: not double.is_busy(), 30, "the engine does what it was asked for")
            wait_for(lambda: not double.containers(), 60, "the orphan is ended")
        finally:
            b.remove()
