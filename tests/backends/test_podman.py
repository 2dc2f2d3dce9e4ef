"""What docker sandboxes can, podman's can through the server, too: files that outlive their container, why a
command was stopped, pulls that are told. Terminals, kills and ports are in test_docker_doors.py."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from kept_files import (Box, await_no_roots, check_sleep_and_wake, check_sleeper_outlives, check_snapshot_is_a_copy,
                        check_snapshot_of_a_paused)
from paddock_testing import coordinated
from paddock_testing import engine as engines
from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import Server
from test_docker import GREEDY

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from helpers import read_events  # pylint: disable=wrong-import-position

EVENTS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def image(podman):
    return podman.import_image("test/podman:latest", engines.image_tar("bash"), ["ENV PATH=/bin:/usr/bin"])


@pytest.fixture(scope="module")
def own(podman, image):  # image: none is pulled
    with Server({"providers": "jail,podman", "docker_host": podman.host, "image_pull": "never"}) as s:
        yield s
    assert not podman.containers(), "containers are left behind"


@pytest.fixture
def box(own, image, podman):
    await_no_roots(podman)  # of the test before
    made = Box(own.client(), provider="podman", image=image)
    yield made
    made.api.delete(made.url)
    await_no_roots(podman)


def test_sleep_and_wake_keep_the_files(box):
    check_sleep_and_wake(box, 2)


def test_a_sleeper_outlives_server_and_keeper(own, box):
    check_sleeper_outlives(own, box, "podman")


def test_a_snapshot_is_a_copy(box):
    check_snapshot_is_a_copy(box, "podman")


def test_a_snapshot_of_one_that_is_paused(box):
    check_snapshot_of_a_paused(box)


def test_out_of_memory_is_told(own, image):
    small = Box(own.client(), provider="podman", image=image, limits={"memory_bytes": 64 << 20})
    told = small.api.post(f"{small.url}/exec", json={"command": GREEDY}).json()
    assert told["stopped_by"] == "oom", told
    assert small.out("echo on") == "on\n"
    small.delete()


@pytest.fixture
def fetching(podman, registry):  # podman: skipped where there is none
    """One that knows the registry."""
    service = engines.Podman(registry.address).start()
    yield service
    service.close()


def test_a_pull_is_told(fetching, registry, tmp_path):
    image = fetching.import_image("test/pulled:latest", engines.image_tar("sh"), ["ENV PATH=/bin:/usr/bin"])
    name, digest = registry.push(fetching, image, "team/tool:1")
    fetching.good("DELETE", f"/images/{image}?force=1")
    auth = tmp_path / "auth.json"
    auth.write_text(json.dumps(registry.auth()[1]))
    auth.chmod(0o600)
    with Server({"providers": "jail,podman", "docker_host": fetching.host, "registry_auth": str(auth)}) as s:
        api = s.client()
        stream = api.stream("POST", "/v1/sandboxes", json={"provider": "podman", "image": name}, headers=EVENTS)
        assert stream.status == 200 and stream.headers["Content-Type"] == "text/event-stream", stream
        *pulls, last = list(read_events(stream))
        assert last.name == "created", last
        assert pulls and all(e.name == "image.pull" and e.data["image"] == name for e in pulls), pulls
        assert pulls[-1].data["layers_done"] == pulls[-1].data["layers"] >= 1, pulls
        assert api.delete(f"/v1/sandboxes/{last.data['id']}").status == 204

        pinned = Box(api, provider="podman", image=f"{name.rpartition(':')[0]}@{digest}")
        assert pinned.out("echo pinned") == "pinned\n"
        pinned.delete()


@pytest.fixture(scope="module")
def debian(podman):
    with tempfile.NamedTemporaryFile(prefix="paddock-image-", suffix=".tar") as tar:
        engines.debian_tar(tar.name)
        return podman.import_image("test/podman-debian:latest", Path(tar.name).read_bytes(),
                                   ["ENV PATH=/usr/local/bin:/usr/bin:/bin"])


if paddock.NIGHTLY:  # the image takes ten seconds to make
    def test_contexts_keep_their_variables_and_are_copied(own, debian, podman):
        """Contexts are processes: wherever python3 is, they are the same. Those of docker: test_contract.py, by night."""
        box = Box(own.client(), provider="podman", image=debian)
        contexts = f"{box.url}/contexts"

        def text(code, context="python"):
            done = box.api.post(f"{contexts}/{context}/execute", json={"code": code}).json()
            assert done["error"] is None, done
            return done["results"][0]["text"] if done["results"] else None

        assert text("import os; x = [1]; x") == "[1]"
        copy = box.api.post(f"{contexts}/python/fork", json={}).json()["id"]
        assert text("x.append(2)") is None and text("x, os.getpid()", copy) != text("x, os.getpid()")
        assert text("x", copy) == "[1]" and text("x") == "[1, 2]"
        assert box.api.post(f"{contexts}/python/restart").status in (200, 204)
        assert text("'x' in globals()") == "False" and text("x", copy) == "[1]"
        box.api.delete(box.url)
        await_no_roots(podman)

    def test_the_coordinator_of_the_python_package(own, debian, tmp_path):
        coordinated.check_request(own, "podman", tmp_path, "PodmanCoordinator", image=debian)
