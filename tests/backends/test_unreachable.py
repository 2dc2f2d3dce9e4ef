"""Boxes that nobody can reach do not slow their neighbours: the same server runs commands in a jail while the way to many
rented sandboxes carries nothing, in which commands run out of time, are asked for and are deleted.

What is compared is the slowest hundredth of the neighbour's commands, in turns with and without: the best turn with
unreachable boxes beside the worst one without. That the comparison sees something is shown by a server that is stopped now
and then for twice as long as is allowed."""

import os
import signal
import threading
import time

import pytest

from paddock_testing import run as paddock
from paddock_testing.cutter import Cutter
from paddock_testing.rented import Landlord
from paddock_testing.server import check_error
from test_e2b import tenant

from breaking import Box, Later  # pylint: disable=import-error,wrong-import-order

BOXES = 100 if paddock.NIGHTLY else 8
TURNS = 3
ROUNDS = 300 if paddock.NIGHTLY else 150
ALLOWED = 4  # times as long
MAKERS = 4


def hundredth(box, rounds=ROUNDS, before=lambda number: None):
    """In seconds; of so few the second slowest."""
    took = []
    for number in range(rounds):
        before(number)
        began = time.perf_counter()
        answer = box.api.post(f"{box.url}/exec", json={"argv": ["/bin/true"]})
        took.append(time.perf_counter() - began)
        assert answer.status == 200 and answer.json()["exit_code"] == 0, answer
    return sorted(took)[-max(2, rounds // 100)]


def make_many(server, count):
    made, lock = [], threading.Lock()

    def make():
        api = server.client()
        while True:
            with lock:
                if len(made) >= count:
                    return
                made.append(None)
                place = len(made) - 1
            made[place] = Box(api, provider="e2b")

    makers = [Later(make) for _ in range(MAKERS)]
    for maker in makers:
        assert maker.end(600).error is None, maker.error
    return made


def ask(server, box):
    """A command in a box that cannot be reached, which runs out of time."""
    answer = server.client().post(f"{box.url}/exec", json={"command": "true", "timeout_s": 1})
    assert answer.status in (200, 503, 504), answer


def delete(server, box):
    answer = server.client().delete(box.url)
    assert answer.status in (204, 404) or check_error(answer, 503), answer


def stop(pid, how_long):
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(how_long, os.kill, (pid, signal.SIGCONT)).start()


@pytest.fixture(scope="module")
def landlord():
    with Landlord({"max_sandboxes": 2 * BOXES, "max_sandboxes_per_tenant": 2 * BOXES}) as who:
        yield who


@pytest.mark.timeout(paddock.seconds(1800 if paddock.NIGHTLY else 240))
def test_unreachable_boxes_do_not_slow_a_neighbour(landlord):
    way = Cutter(landlord.port)
    server = tenant(landlord, f"https://127.0.0.1:{way.address[1]}", max_sandboxes=2 * BOXES + 8,
                    max_sandboxes_per_tenant=2 * BOXES + 8)
    try:
        boxes = make_many(server, BOXES)
        neighbour = Box(server.client(), provider="jail")
        hundredth(neighbour, 30)
        without, beside = [], []
        for turn in range(TURNS):
            without.append(hundredth(neighbour))
            dying = [boxes.pop() for _ in range(len(boxes) // 4)] if turn == TURNS - 1 else []
            with way.blocked():
                calls = [Later(ask, server, box) for box in boxes] + [Later(delete, server, box) for box in dying]
                beside.append(hundredth(neighbour))
            for call in calls:
                assert call.end(120).error is None, call.error
        print(f"without {without}, beside {BOXES} unreachable boxes {beside}", flush=True)
        assert min(beside) <= ALLOWED * max(without), (without, beside)

        stopped = hundredth(neighbour, 60, lambda n: n % 10 == 0 and stop(server.daemon(), 2 * ALLOWED * max(without)))
        assert stopped > ALLOWED * max(without), ("the control", stopped, without)
        for box in boxes:
            assert box.out("echo back", timeout_s=60) == "back\n"
    finally:
        server.close()
        way.close()
    landlord.await_none("no sandbox is left behind", 60)
