"""A backend that does not answer at all holds up nobody else: its brokers, or its keeper, are stopped (SIGSTOP), while its
sandboxes run commands that fail and that run out of time, are deleted and made. Beside them a neighbour in a jail runs
commands of the kind that asks its own backend why they failed; what is compared are its slowest ones, with and without.
Sandboxes whose time is over end, and samples are taken, while the other keeper stands still.

Nothing in the server may wait for such a backend but the requests that are for it."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from kept_files import keeper_of
from paddock_testing import engine_double, host
from paddock_testing import run as paddock
from paddock_testing.server import Server
from test_engine_faults import a_double

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))
from breaking import Box, Later  # pylint: disable=wrong-import-position

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the containers are real namespaces")
TURNS, ROUNDS = 3, 60
ALLOWED = 4  # times as long, and
SPARE = 0.25  # seconds more, which is a tenth of the least that a server has waited for a keeper
SETTINGS = {"providers": "jail,docker", "image_pull": "never", "storage": "memory", "requests_per_s": 0, "creates_per_s": 0}


def slowest(box, before=lambda number: None):
    """In seconds, but for one: of commands that outlive what their request's own thread looks after, and fail."""
    took = []
    for number in range(ROUNDS):
        before(number)
        began = time.perf_counter()
        answer = box.api.post(f"{box.url}/exec", json={"command": "sleep 0.01; false"})
        took.append(time.perf_counter() - began)
        assert answer.status == 200 and answer.json()["exit_code"] == 1, answer
    return sorted(took)[-2]


class Load:
    """What asks the backend for something without end."""

    def __init__(self, server):
        self.server, self.over = server, threading.Event()
        boxes = [Box(server.client(), provider="docker", image=engine_double.IMAGE) for _ in range(4)]
        self.threads = [Later(self.fail, boxes[0]), Later(self.run_out, boxes[1]), Later(self.end, boxes[2:]),
                        Later(self.make)]

    def fail(self, box):
        api = self.server.client()
        while not self.over.wait(0.02):
            api.post(f"{box.url}/exec", json={"command": "sleep 0.01; false"})

    def run_out(self, box):
        """Of time, with nobody there."""
        api = self.server.client()
        while not self.over.wait(0.05):
            api.post(f"{box.url}/processes", json={"command": "sleep 30", "timeout_s": 1})

    def end(self, boxes):
        for box in boxes:
            self.server.client().delete(box.url)

    def make(self):
        self.server.client().post("/v1/sandboxes", json={"provider": "docker", "image": engine_double.IMAGE})

    def stop(self):
        self.over.set()
        for thread in self.threads:
            assert thread.end(120).error is None, thread.error


def end_beside(server, box, rounds):
    """How long jails outlive their time, in seconds: the longest but one of so many, while a neighbour runs commands and has
    its samples taken."""
    over, api = threading.Event(), server.client()

    def work():
        client = server.client()
        while not over.is_set():
            answer = client.post(f"{box.url}/exec", json={"argv": ["/bin/true"]})
            assert answer.status == 200, answer
            ran.append(answer)

    ran, late = [], []
    worker = Later(work)
    try:
        for _ in range(rounds):
            made = api.post("/v1/sandboxes", json={"provider": "jail", "max_life_s": 1}).json()
            began = time.perf_counter()
            paddock.wait_for(lambda made=made: api.get(f"/v1/sandboxes/{made['id']}").json()["state"] == "gone", 60,
                             "a sandbox whose time is over ends")
            late.append(time.perf_counter() - began - 1)
    finally:
        over.set()
        assert worker.end(60).error is None, worker.error
    return sorted(late)[-2], len(ran)


def pids_of(server, who):
    keeper = keeper_of(server, "docker")
    return [keeper] if who == "keeper" else [p for p in host.descendants(keeper) if "broker" in host.command_line(p)]


if paddock.NIGHTLY:  # by day: test_a_provider_that_is_silent_holds_up_no_other, a unit test
    @pytest.mark.timeout(paddock.seconds(600))
    @pytest.mark.parametrize("who", ["keeper", "brokers"])
    def test_one_that_does_not_answer_holds_up_nobody_else(who):
        with a_double() as double, Server({**SETTINGS, "docker_host": double.host}) as server:
            neighbour = Box(server.client(), provider="jail")
            slowest(neighbour)
            without, beside = [], []
            for _ in range(TURNS):
                load = Load(server)
                without.append(slowest(neighbour))
                pids = pids_of(server, who)
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                try:
                    time.sleep(0.2)  # for requests to come to where they wait
                    beside.append(slowest(neighbour))
                finally:
                    for pid in pids:
                        os.kill(pid, signal.SIGCONT)
                load.stop()
            print(f"{who}: without {without}, beside {beside}", flush=True)
            assert min(beside) <= ALLOWED * max(without) + SPARE, (without, beside)

            # The control: of a server that stands still for so long now and then it is seen.
            def stand(number):
                if number % 8 == 0:
                    os.kill(server.daemon(), signal.SIGSTOP)
                    threading.Timer(2 * (ALLOWED * max(without) + SPARE), os.kill, (server.daemon(), signal.SIGCONT)).start()

            assert slowest(neighbour, stand) > ALLOWED * max(without) + SPARE, without

    @pytest.mark.timeout(paddock.seconds(300))
    def test_a_stopped_keeper_keeps_nobody_elses_sandbox_alive():
        with a_double() as double, Server({**SETTINGS, "docker_host": double.host}) as server:
            neighbour = Box(server.client(), provider="jail")
            without, _ = end_beside(server, neighbour, 4)
            # Its own controller has something to do: ends that are due, and samples.
            waiting = [Box(server.client(), provider="docker", image=engine_double.IMAGE, max_life_s=5) for _ in range(4)]
            keeper = keeper_of(server, "docker")
            os.kill(keeper, signal.SIGSTOP)
            try:
                time.sleep(6)  # until these are due, and their controller asks
                beside, ran = end_beside(server, neighbour, 8)
                states = [server.client().get(box.url).json()["state"] for box in waiting]
                assert "gone" not in states, states  # the control: it does wait
            finally:
                os.kill(keeper, signal.SIGCONT)
            print(f"without {without}, beside {beside}, {ran} commands", flush=True)
            assert beside <= ALLOWED * max(without, 0) + 1, (without, beside)  # it looks four times a second
            assert ran > 100
            for box in waiting:
                paddock.wait_for(lambda box=box: server.client().get(box.url).json()["state"] == "gone", 60, "they end, too")
