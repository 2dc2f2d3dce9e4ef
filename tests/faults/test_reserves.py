"""A server that is full serves what it has, and is followed by one that has all of it."""

import socket
import time

import pytest

from breaking import Box, Victim, check_error
from paddock_testing import host
from paddock_testing import run as paddock
from test_limits import cpu_seconds, few_files, open_files

MOST = 400


def fill(api, most=MOST):
    """Creates until refused, in an orderly way. The boxes and the refusal."""
    boxes = []
    for _ in range(most):
        answer = api.post("/v1/sandboxes", json={})
        if answer.status != 201:
            return boxes, answer
        boxes.append(Box(api, answer.json()["id"]))
    raise AssertionError(f"never refused: {most} sandboxes")


def all_run(api, boxes, word):
    found = api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]
    states = {s["id"]: s["state"] for s in found}
    assert {b.id for b in boxes} <= set(states), "one is missing"
    assert {states[b.id] for b in boxes} == {"running"}, states
    for box in boxes:
        assert box.out(f"echo {word}") == f"{word}\n"


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("files", [160, 300])
def test_full_by_descriptors(files, storage):
    """Refused with the reason and the remedy; every sandbox can exec, twice and after a kill -9."""
    settings = {"max_open_files": files, "max_sandboxes": 1000, "max_sandboxes_per_tenant": 1000,
                "storage": storage}
    with Victim(settings) as server:
        api = server.client()
        assert open_files(server.daemon())[0] == files
        assert open_files(server.keeper())[0] == files
        boxes, refused = fill(api)
        check_error(refused, 503, "capacity", says="descriptors")
        assert "LimitNOFILE" in refused.text and refused.headers.get("Retry-After"), refused
        print(f"{len(boxes)} sandboxes with {files} descriptors")
        assert len(boxes) >= (files - 64 - 40) // 8
        all_run(api, boxes, "full")
        all_run(api, boxes, "again")
        server.kill_and_restart()
        all_run(api, boxes, "after")
        # Again while it is full: the second server has no more room than the first had.
        _, refused = fill(api)
        check_error(refused, 503, "capacity")
        server.kill_and_restart("daemon")
        all_run(api, boxes, "twice")
        # Room that is given back can be used, whichever numbers it had.
        for box in boxes[: len(boxes) // 2]:
            box.delete()
        other = Box(api)
        assert other.out("echo new") == "new\n"
        api.close()


@pytest.mark.parametrize("spare", [0, 1, 2])
def test_the_keeper_at_its_limit_lets_the_next_server_in(spare):
    """Not one descriptor is left to the keeper when the server is killed."""
    with Victim() as server:
        api = server.client()
        boxes = [Box(api) for _ in range(12)]
        with few_files(server.keeper(), spare):
            server.kill_and_restart()
            all_run(api, boxes, "here")
            refused = api.post("/v1/sandboxes", json={})
            check_error(refused, 503, "capacity")
            server.kill_and_restart()
            all_run(api, boxes, "still")
        assert Box(api).out("echo fine") == "fine\n"
        api.close()


def test_a_keeper_without_descriptors_does_not_spin():
    """Somebody connects although none is left: let in on one that was held back, or left to wait."""
    with Victim() as server:
        api, keeper = server.client(), server.keeper()
        box = Box(api)
        socks = []
        with few_files(keeper, 0):
            for _ in range(3):
                socks.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                socks[-1].connect(f"{server.run_dir}/keeper.sock")
            before = cpu_seconds(keeper)
            time.sleep(0.5)
            spent = cpu_seconds(keeper) - before
            server.kill_and_restart()
            all_run(api, [box], "here")
        for sock in socks:
            sock.close()
        assert spent < 0.2, f"{spent:.2f} s of processor time in half a second"
        api.close()


def settled(look):
    """What it is when it has been the same for two seconds: jails that are made in advance are there."""
    return paddock.settled(look, limit=60, still=2)


def test_many_are_listed_with_few_descriptors():
    """A list is longer than the socket takes at once: nothing is copied for what waits."""
    with Victim({"max_sandboxes": 400, "max_sandboxes_per_tenant": 400, "storage": "memory",
                 "queue_max": 400}) as server:
        api = server.client()
        boxes = [Box(api) for _ in range(320)]
        used = settled(lambda: len(host.descriptors(server.keeper())))
        with few_files(server.keeper(), 4):
            server.kill_and_restart()
            found = api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]
            assert {s["id"] for s in found if s["state"] == "running"} == {b.id for b in boxes}
        assert boxes[0].out("echo first") == "first\n"
        assert boxes[-1].out("echo last") == "last\n"
        assert settled(lambda: len(host.descriptors(server.keeper()))) <= used + 8
        api.close()


def test_the_log_tells_how_many():
    with Victim({"max_open_files": 300, "max_sandboxes": 1000}) as server:
        log = server.log()
        assert "server.files" in log and "limit=300" in log and "sandboxes=49" in log, log
        assert "possible=49" in log, log


def test_the_keepers_limit_is_no_jails():
    """The keeper raises its own; a jail has no more than the keeper was started with."""
    with Victim() as server:
        api = server.client()
        own = open_files(server.keeper())[0]
        inside = int(Box(api).out("ulimit -n"))
        started_with = open_files(server.process.pid)[1]
        assert inside <= started_with <= own
        api.close()
