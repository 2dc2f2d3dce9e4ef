"""kill -9 and cuts around sandboxes on another machine while their commands print.

Between the server and the engine is a proxy that cuts every connection there is, at any byte. Neither that nor the death
of a daemon, a keeper, a broker, a carrier or a stand-in changes anything for a command: its client has every byte and one end, and
it ran once. The death of a stand-in's guard or of a watch takes their sandboxes along: the end is told once, and no container stays."""

import contextlib
import os
import random
import signal
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.cutter import Cutter
from test_docker_kill import (Printer, brokers, check_engine, check_whole, delete_strays, keeper_of, make_box)

from breaking import Victim  # pylint: disable=import-error,wrong-import-order

HARMLESS = ("cut", "carrier", "stand-in", "daemon", "broker", "keeper")
DEADLY = ("guard", "watch")
COMMS = {"carrier": "paddock-carrier", "stand-in": "paddock-standin", "guard": "paddock-guard", "watch": "paddock-far"}


@pytest.fixture(scope="module")
def cutter(far):
    way = Cutter(far.port)
    yield way
    way.close()


@pytest.fixture(scope="module")
def server(far, far_images, cutter):
    settings = {**far.settings(), "docker_host": f"tcp://127.0.0.1:{cutter.address[1]}"}
    with Victim({"providers": "jail,docker", "image_pull": "never", **settings}) as v:
        admin = v.client(v.run("key", "create", "--admin", "--tenant", "ops").stdout.strip())
        assert admin.put("/v1/router", json={"breaker": {"open_s": 1, "open_max_s": 1}}).status == 200
        yield v
    paddock.wait_for(lambda: not far.containers() and not far.roots(), 60, "no container is left behind")


def named(server, victim):
    """The processes of this name that stand for the server's sandboxes. One whose broker was killed is nobody's child."""
    found = []
    for pid in host.pids():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/comm", encoding="ascii") as name:
                if name.read().strip() == COMMS[victim] and server.state_dir in " ".join(host.command_line(pid)):
                    found.append(pid)
    return found


def strike(server, cutter, victim):
    server.note_instances()
    if victim == "cut":
        cutter.cut()
    elif victim == "daemon":
        server.kill("daemon")
        server.restart()
    else:
        pids = {"keeper": lambda: [keeper_of(server, "docker")], "broker": lambda: brokers(server)}.get(
            victim, lambda: named(server, victim))
        pids = paddock.wait_for(pids, 20, f"there is a {victim}")
        for pid in pids if victim != "broker" else [random.choice(pids)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def check_lost(printer):
    assert [e["stopped_by"] for e in printer.ends] == ([] if printer.lost else ["sandbox"]), printer.ends
    paddock.wait_for(lambda: printer.box.get()["end_cause"], 60, "it is lost")
    told = printer.box.get()
    assert told["end_cause"] == "lost" and told["end_reason"], told


def one_round(server, cutter, far, images, boxes, number, victims):
    while len(boxes) < 2:
        boxes.append(make_box(server, images))
    printers = [Printer(box, f"run-{number}-{n}") for n, box in enumerate(boxes)]
    deadly = victims[-1] in DEADLY
    if deadly:
        paddock.wait_for(lambda: all(p.began for p in printers), 60, "they print")
    for victim in victims:
        time.sleep(random.uniform(0, 0.2))
        strike(server, cutter, victim)

    for printer in printers:
        if deadly:
            check_lost(printer.end())
        else:
            printer.go_on()
            check_whole(printer.end())
    if deadly:
        boxes.clear()
    delete_strays(server, boxes)
    check_engine(server, far, boxes)


def test_every_byte_and_every_end_once(server, cutter, far, far_images):
    boxes = []
    for number in range(paddock.rounds(6, 300, 6)):
        victims = [HARMLESS[number % 6]] + random.choices(HARMLESS[:3], k=random.randrange(1, 6))
        print(f"round {number}: {victims}", flush=True)
        one_round(server, cutter, far, far_images, boxes, number, victims)
    for box in boxes:
        box.delete()
    check_engine(server, far, [])


@pytest.mark.parametrize("victim", DEADLY)
def test_whose_death_takes_sandboxes_along_is_told(server, cutter, far, far_images, victim):
    one_round(server, cutter, far, far_images, [], 1000 + DEADLY.index(victim), [victim])
    for kind in COMMS:
        paddock.wait_for(lambda k=kind: not named(server, k), 30, f"no {kind} is left")
    check_engine(server, far, [])
