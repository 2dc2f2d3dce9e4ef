"""The daemon killed while sandboxes fall asleep, wake and are copied: no file is lost or left."""

import contextlib
import itertools
import os
import random
import signal
import threading
import time

import pytest

from breaking import Box, Victim
from paddock_testing import run as paddock


@pytest.fixture(scope="module")
def server():
    with Victim() as v:
        yield v


def roots(server, kind):
    folder = os.path.join(server.state_dir, "roots")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {n for n in names if n.startswith(f"{kind}-")}


def break_off(server, *calls):
    """Makes the calls one after the other; somewhere in between the daemon is killed."""
    def make():
        api = server.client()
        with contextlib.suppress(Exception):  # whose connection breaks
            for path, body in calls:
                api.post(path, json=body)
    thread = threading.Thread(target=make)
    thread.start()
    time.sleep(random.uniform(0, 0.25))
    server.kill_and_restart("daemon")
    thread.join()


def wake(api, url):
    with contextlib.suppress(Exception):  # whose connection breaks
        api.post(f"{url}/resume")


def test_files_outlive_every_sleep(server):
    for number in range(paddock.rounds(8, 40, 5)):
        box = Box(server.client())
        box.out(f"echo {number} >/workspace/kept")
        url = f"/sandboxes/{box.id}"
        break_off(server, (f"{url}/pause", {"memory": False}), (f"{url}/connect", {"timeout": 300}),
                  (f"{url}/pause", {"memory": False}))
        api = box.api = server.client()
        assert box.get()["state"] in ("running", "paused")
        answer = api.post(f"/v1/sandboxes/{box.id}/resume")
        assert answer.status == 200, answer
        assert box.out("cat /workspace/kept") == f"{number}\n"
        if number % 2:
            assert api.post(f"{url}/pause", json={"memory": False}).status in (200, 204)
        box.delete()
    paddock.wait_for(lambda: not roots(server, "sb"), 20, "the files of all are deleted")


def test_files_outlive_a_wake_that_dies_with_the_keeper(server):
    """The next keeper takes roots for leftovers, but not that of a sandbox that sleeps on."""
    slept = 0
    deadline = time.monotonic() + paddock.seconds(120)
    for number in itertools.count():
        if number >= paddock.rounds(8, 40, 8) and (slept or time.monotonic() > deadline):
            break
        box = Box(server.client())
        box.out(f"echo {number} >/workspace/kept")
        assert box.api.post(f"/sandboxes/{box.id}/pause",
                            json={"memory": False}).status in (200, 204)
        # Finding these takes as long as a wake on a busy machine.
        server.note_instances()
        keeper = server.keeper()
        thread = threading.Thread(target=wake, args=(server.client(), box.url))
        thread.start()
        time.sleep(random.uniform(0, 0.03))
        os.kill(keeper, signal.SIGKILL)
        server.kill_and_restart("guardian")
        thread.join()
        box.api = server.client()
        if box.get()["state"] == "paused":
            slept += 1
            answer = box.api.post(f"{box.url}/resume")
            assert answer.status == 200, answer
            assert box.out("cat /workspace/kept") == f"{number}\n"
        box.delete()
    assert slept, "each of them had been woken before the kill"
    paddock.wait_for(lambda: not roots(server, "sb"), 20, "the files of all are deleted")


def test_a_sleeper_without_its_files_says_so(server):
    box = Box(server.client())
    box.out("echo here >/workspace/kept")
    assert box.api.post(f"/sandboxes/{box.id}/pause", json={"memory": False}).status in (200, 204)
    root = os.path.join(server.state_dir, "roots", f"sb-{box.id}")
    aside = os.path.join(server.state_dir, "aside")
    os.rename(root, aside)
    answer = box.api.post(f"{box.url}/resume")
    assert answer.status == 410 and "files" in answer.json()["error"]["message"], answer
    assert not os.path.exists(root), "no empty root in its place"
    os.rename(aside, root)
    answer = box.api.post(f"{box.url}/resume")
    assert answer.status == 200, answer
    assert box.out("cat /workspace/kept") == "here\n"
    box.delete()


def test_a_deleted_sleeper_is_not_forgotten(server):
    """Its keeper and the daemon die before the keeper has heard of the end: either nobody was told that
    the sandbox is deleted, or its files go with the next keeper."""
    box = Box(server.client())
    box.out("echo dear >/workspace/kept")
    assert box.api.post(f"/sandboxes/{box.id}/pause", json={"memory": False}).status == 204
    assert roots(server, "sb")
    server.note_instances()
    keeper = server.keeper()
    told = []

    def delete(api):
        with contextlib.suppress(Exception):  # whose connection breaks
            told.append(api.delete(box.url))
    thread = threading.Thread(target=delete, args=(server.client(),))
    os.kill(keeper, signal.SIGSTOP)
    try:
        thread.start()
        thread.join(1)  # it may wait for the keeper
        server.kill()
    finally:
        os.kill(keeper, signal.SIGKILL)
    thread.join()
    server.start()
    api = server.client()
    if not told and api.get(box.url).json()["state"] == "paused":
        assert api.delete(box.url).status == 204
    paddock.wait_for(lambda: not roots(server, "sb"), 20, "its files are deleted")


def test_snapshots_are_whole_or_not_there(server):
    for _ in range(paddock.rounds(8, 40, 5)):
        box = Box(server.client())
        box.out("head -c 3000000 /dev/zero >/workspace/large; echo whole >/workspace/last")
        break_off(server, *[(f"/sandboxes/{box.id}/snapshots", {})] * 3)
        api = box.api = server.client()
        listed = api.get("/snapshots").json()
        paddock.wait_for(lambda n=len(listed): len(roots(server, "sn")) == n, 20,
                         "a root for every snapshot, and no other")
        for snapshot in listed:
            made = api.post("/sandboxes", json={"templateID": snapshot["snapshotID"]})
            assert made.status == 201, made
            copy = f"/v1/sandboxes/{made.json()['sandboxID']}"
            result = api.post(f"{copy}/exec", json={"command": "cat /workspace/last"}).json()
            assert result["stdout"] == "whole\n", result
            api.delete(copy)
            assert api.delete(f"/templates/{snapshot['snapshotID']}").status in (200, 204)
        # One that nothing broke off is there.
        answer = api.post(f"/sandboxes/{box.id}/snapshots", json={})
        assert answer.status == 201, answer
        paddock.wait_for(lambda: len(roots(server, "sn")) == 1, 20, "it is the only one")
        api.delete(f"/templates/{answer.json()['snapshotID']}")
        box.delete()
    paddock.wait_for(lambda: not roots(server, "sn") | roots(server, "sb"), 20, "nothing is left")
