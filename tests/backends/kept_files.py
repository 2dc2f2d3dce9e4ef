"""Files that outlive the container of their sandbox: a sandbox of an engine, and what must hold for each engine."""

import os
import signal
import time

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.e2b_http import E2b


class Box:
    """A sandbox in docker."""

    def __init__(self, api, path="/v1/sandboxes", **body):
        self.api = api
        answer = api.post(path, json=body)
        assert answer.status == 201, answer
        self.id = answer.json().get("id") or answer.json()["sandboxID"]
        self.url = f"/v1/sandboxes/{self.id}"

    def out(self, line):
        answer = self.api.post(f"{self.url}/exec", json={"command": line})
        assert answer.status == 200 and answer.json()["exit_code"] == 0, answer
        return answer.json()["stdout"]

    def sleep(self):
        answer = self.api.post(f"/sandboxes/{self.id}/pause", json={"memory": False})
        assert answer.status == 204, answer

    def wake(self):
        answer = self.api.post(f"{self.url}/resume")
        assert answer.status == 200, answer

    def snapshot(self):
        answer = self.api.post(f"/sandboxes/{self.id}/snapshots", json={})
        assert answer.status == 201, answer
        return answer.json()["snapshotID"]

    def delete(self):
        answer = self.api.delete(self.url)
        assert answer.status == 204, answer


def await_no_roots(dockerd):
    deadline = time.monotonic() + paddock.seconds(30)
    while left := dockerd.roots():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def keeper_of(server, kind):
    socket = os.path.join(server.run_dir, f"keeper-{kind}.sock")

    def the_only_one():
        pids = [p for p in host.pids() if socket in host.command_line(p)]
        return pids if len(pids) == 1 else None
    return paddock.wait_for(the_only_one, 20, f"one keeper of {kind}")[0]


def check_sleep_and_wake(box, rounds):
    box.out("echo one >/workspace/kept; mkdir /workspace/d; ln -s ../kept /workspace/d/link")
    for number in range(rounds):
        box.sleep()
        box.wake()
        assert box.out("cat /workspace/d/link") == "one\n"
        box.out(f"echo {number} >/workspace/n{number}")
    assert box.out("cat /workspace/n*") == "".join(f"{n}\n" for n in range(rounds))


def check_sleeper_outlives(server, box, kind):
    """The server and the keeper of that kind, which are killed."""
    box.out("echo far >/workspace/kept")
    box.sleep()
    keeper = keeper_of(server, kind)
    server.kill()
    os.kill(keeper, signal.SIGKILL)

    server.start()
    box.api = server.client()
    box.wake()
    assert box.out("cat /workspace/kept") == "far\n"


def check_snapshot_is_a_copy(box, provider):
    api = box.api
    box.out("echo old >/workspace/file")
    snapshot = box.snapshot()
    box.out("echo new >/workspace/file")

    copies = [Box(api, "/sandboxes", templateID=snapshot) for _ in range(2)]
    for copy in copies:
        assert api.get(copy.url).json()["provider"] == provider
        assert copy.out("cat /workspace/file; echo own >/workspace/file") == "old\n"
    assert [b.out("cat /workspace/file") for b in (*copies, box)] == ["own\n", "own\n", "new\n"]

    for copy in copies:
        copy.delete()
    assert api.delete(f"/templates/{snapshot}").status in (200, 204)


def check_snapshot_of_a_paused(box):
    """It is a copy as well, and the sandbox stays paused."""
    api = box.api
    box.out("echo still >/workspace/file")
    assert api.post(f"{box.url}/pause").status == 200
    snapshot = box.snapshot()
    assert api.get(box.url).json()["state"] == "paused"
    assert api.post(f"{box.url}/exec", json={"command": "true"}).status == 409

    copy = Box(api, "/sandboxes", templateID=snapshot)
    assert copy.out("cat /workspace/file") == "still\n"
    copy.delete()
    assert api.delete(f"/templates/{snapshot}").status in (200, 204)
    box.wake()
    assert box.out("cat /workspace/file") == "still\n"
