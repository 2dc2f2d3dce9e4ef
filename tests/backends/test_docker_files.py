"""Files that outlive their container: sleep, snapshots and forks of sandboxes in docker, whoever is
killed in between, and nothing of them left in the engine when they are deleted."""

import os
import signal
import threading
import time

import pytest

from kept_files import (Box, await_no_roots, check_sleep_and_wake, check_sleeper_outlives, check_snapshot_is_a_copy,
                        check_snapshot_of_a_paused, keeper_of)
from paddock_testing import engine
from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b


@pytest.fixture(scope="module", autouse=True)
def nothing_left(server, dockerd):
    yield
    await_no_roots(dockerd)


@pytest.fixture
def api(server):
    return server.client()


@pytest.fixture
def box(api, images, dockerd):
    await_no_roots(dockerd)  # of the test before
    made = Box(api, provider="docker", image=images["bash"])
    yield made
    made.api.delete(made.url)


def test_sleep_and_wake_keep_the_files(box):
    check_sleep_and_wake(box, 3)


def test_a_sleeper_outlives_server_and_keeper(server, box):
    check_sleeper_outlives(server, box, "docker")


def test_a_snapshot_is_a_copy(box):
    check_snapshot_is_a_copy(box, "docker")


def test_a_snapshot_of_one_that_is_paused(box):
    check_snapshot_of_a_paused(box)


def test_files_that_somebody_else_removed(box, dockerd):
    box.sleep()
    for name in paddock.wait_for(dockerd.roots, 20, "its container has ended"):
        dockerd.good("DELETE", f"/containers/{name.lstrip('/')}?force=1")
    answer = box.api.post(f"{box.url}/resume")
    assert answer.status == 410 and "files" in answer.json()["error"]["message"], answer


def test_a_sleeper_that_is_deleted_leaves_nothing(api, images, dockerd):
    made = Box(api, provider="docker", image=images["bash"])
    made.sleep()
    made.wake()  # from here on there is an image, too
    made.sleep()
    assert dockerd.roots()
    made.delete()
    await_no_roots(dockerd)


def test_an_image_with_a_volume_keeps_its_files(server, api, dockerd):
    """A commit has nothing of a volume: what would lose its files is refused, and they stay."""
    image = dockerd.import_image("test/volume:1", engine.image_tar("bash"),
                                 ["ENV PATH=/bin:/usr/bin", "VOLUME /data"])
    made = Box(api, provider="docker", image=image, profile="dev")
    try:
        made.out("sudo sh -c 'echo dear >/data/file'")
        for path, body in ((f"/sandboxes/{made.id}/pause", {"memory": False}),
                           (f"/sandboxes/{made.id}/snapshots", {})):
            answer = E2b(server).post(path, body)
            assert answer.status == 501 and "/data" in answer.json()["message"], answer
        assert made.out("cat /data/file") == "dear\n"
    finally:
        made.delete()


def test_files_are_removed_when_the_engine_is_back(server, images, dockerd):
    """The engine is away when a sandbox is deleted, and the keeper that was told of it dies."""
    made = Box(server.client(), provider="docker", image=images["bash"])
    made.sleep()
    paddock.wait_for(dockerd.roots, 20, "its container has ended")
    dockerd.stop()
    try:
        made.delete()
        keeper = keeper_of(server, "docker")
        server.kill()
        os.kill(keeper, signal.SIGKILL)
    finally:
        dockerd.start()
    assert dockerd.roots(), "it was away"
    server.start()
    await_no_roots(dockerd)


def test_all_at_once(server, images, dockerd):
    """Sleep, wake, copy, command and end of one sandbox at the same moment: each is done or refused, none
    fails inside, and nothing is left."""
    for number in range(paddock.rounds(4, 60)):
        made = Box(server.client(), provider="docker", image=images["bash"])
        base, wrong = f"/sandboxes/{made.id}", []

        def ask(delay, method, path, body):
            time.sleep(delay)
            answer = E2b(server).request(method, path, body)
            if answer.status >= 500 and answer.status != 503:
                wrong.append((path, answer))
        calls = [("POST", f"{base}/pause", {"memory": False}), ("POST", f"{made.url}/resume", {}),
                 ("POST", f"{base}/snapshots", {}), ("POST", f"{made.url}/exec", {"command": "true"}),
                 ("POST", f"{base}/pause", {"memory": False}), ("POST", f"{made.url}/resume", {})]
        threads = [threading.Thread(target=ask, args=(0.05 * (n * number % 7), *call))
                   for n, call in enumerate([*calls, ("DELETE", made.url, None)])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong

        api = server.client()
        for snapshot in api.get("/snapshots").json():
            assert api.delete(f"/templates/{snapshot['snapshotID']}").status in (200, 204)
        await_no_roots(dockerd)
        assert api.get(made.url).json().get("state", "gone") == "gone"


if paddock.NIGHTLY:  # more than a hundred commits
    def test_one_that_slept_too_often_is_told_so(server, box):
        """It is refused before the engine would refuse to wake it, and goes on with its files."""
        box.out("echo dear >/workspace/file")
        for number in range(200):
            answer = E2b(server).post(f"/sandboxes/{box.id}/pause", {"memory": False})
            if answer.status != 204:
                break
            box.wake()
            box.out(f"echo {number} >/workspace/number")  # what has not changed adds no layer
        assert 100 < number < 125 and answer.status == 501 and "layers" in answer.json()["message"], answer
        assert box.out("cat /workspace/file") == "dear\n"
