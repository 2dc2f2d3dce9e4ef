"""The daemon killed at a chosen system call: its n-th sendmsg, its n-th write to the database...

Each point is one life of a sandbox, broken off somewhere; every call that broke is tried again with
its key. FAULT_POINTS=1000 tries more of them than there is time for in every run.
"""

import os
import random
import shutil
import signal
import subprocess

import pytest

from breaking import Box, Victim
from paddock_testing import host
from paddock_testing import run as paddock

CALLS = ("sendmsg", "recvmsg", "pwrite64", "fdatasync", "openat", "unlinkat", "splice", "pipe2",
         "write", "mkdirat", "close", "epoll_ctl", "futex")


class Broken(Exception):
    """The connection broke: nobody knows whether the call was done."""


class Life:
    """The calls of one sandbox; after a restart it goes on where it was."""

    def __init__(self, server, number):
        self.server = server
        self.api = server.client()
        self.number = number
        self.id = None
        self.paused = False

    def call(self, method, path, good, **more):
        self.api.close()
        try:
            answer = self.api.request(method, path, **more)
        except OSError as error:
            raise Broken(str(error)) from error
        except Exception as error:  # http.client's
            if isinstance(error, AssertionError):
                raise
            raise Broken(repr(error)) from error
        assert answer.status in good, (method, path, answer)
        return answer

    def key(self, what):
        return {"Idempotency-Key": f"{what}-{self.number}"}

    def create(self):
        answer = self.call("POST", "/v1/sandboxes", (200, 201), json={}, headers=self.key("create"))
        assert answer.json()["state"] == "running", answer
        assert self.id in (None, answer.json()["id"])
        self.id = answer.json()["id"]
        self.url = f"/v1/sandboxes/{self.id}"

    def exec(self):
        answer = self.call("POST", f"{self.url}/exec", (200,), headers=self.key("exec"),
                           json={"command": "echo x >> count; cd /opt; echo out; echo err >&2"})
        result = answer.json()
        assert (result["exit_code"], result["stdout"], result["stderr"]) == (0, "out\n", "err\n")
        # A kill between the pipe of the shell's state and the rows leaves it open whether the state
        # was taken; it is never half taken, and "updated" is a promise.
        self.directories = ["/opt"] if result["state"] == "updated" else ["/opt", "/workspace"]
        assert result["state"] == "updated" or answer.headers.get("Idempotent-Replayed")

    def look(self):
        answer = self.call("POST", f"{self.url}/exec", (200,),
                           json={"command": "pwd; cat /workspace/count"})
        assert answer.json()["stdout"] in [f"{d}\nx\n" for d in self.directories], answer

    def start(self):
        answer = self.call("POST", f"{self.url}/processes", (200, 201), headers=self.key("start"),
                           json={"command": "echo y >> /workspace/started; seq 1 5000; sleep 0.1"})
        self.process = answer.json()["process_id"]

    def pause(self):
        answer = self.call("POST", f"{self.url}/pause", (200,))
        assert answer.json()["state"] == "paused"

    def resume(self):
        answer = self.call("POST", f"{self.url}/resume", (200,))
        assert answer.json()["state"] == "running"

    def upload(self):
        self.call("PUT", f"{self.url}/files?path=/workspace/file", (200, 201),
                  data=b"contents" * 1000, headers={"Content-Type": "application/octet-stream"})

    def output(self):
        answer = self.call("GET", f"{self.url}/processes/{self.process}/output?follow=true", (200,))
        assert answer.body == b"".join(b"%d\n" % n for n in range(1, 5001))
        answer = self.call("POST", f"{self.url}/exec", (200,),
                           json={"command": "cat /workspace/started; wc -c < /workspace/file"})
        assert answer.json()["stdout"] == "y\n8000\n", answer

    def delete(self):
        self.call("DELETE", self.url, (204,))
        assert self.call("GET", self.url, (200,)).json()["state"] == "gone"

    STEPS = ("create", "exec", "look", "start", "pause", "resume", "upload", "output", "delete")


def live(server, number, call, nth):
    """One life with one kill; False when the daemon never came to that call."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
         f"inject={call}:signal=SIGKILL:when={nth}", "-p", str(server.daemon())],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    server.expect_end()
    daemon = server.daemon()
    paddock.wait_for(lambda: host.status(daemon).get("TracerPid") not in ("0", None)
                     or tracer.poll() is not None, 10, "strace is there")
    life = Life(server, number)
    broken = []
    try:
        for step in Life.STEPS:
            for attempt in range(3):
                try:
                    getattr(life, step)()
                    break
                except Broken:
                    broken.append(step)
                    assert attempt < 2, f"{step} does not come through"
                    server.process.wait(paddock.seconds(10))
                    server.restart()
                except AssertionError as error:
                    raise AssertionError(
                        f"killed at {call} {nth} during {broken}, in {step}: {error}") from error
    finally:
        tracer.send_signal(signal.SIGTERM)
        tracer.wait(paddock.seconds(30))
        life.api.close()
    if server.process.poll() is not None:
        server.restart()
        broken.append("idle")
    return broken


def test_kill_points():
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    points = [(c, n) for c in CALLS for n in range(1, 40)]
    random.shuffle(points)
    count = int(os.environ.get("FAULT_POINTS", paddock.rounds(12, 120, 5)))
    hits = {}
    with Victim({"log_level": "info"}) as server:
        keeper = server.keeper()
        box = Box(server.client())
        box.exec("true")
        box.delete()
        before = paddock.settled(lambda: host.descriptor_kinds(keeper))
        # Some points are never reached: then there are more, but not for ever.
        for number in range(3 * count):
            if number >= count and sum(hits.values()) > count // 5:
                break
            call, nth = points[number % len(points)]
            for step in live(server, number, call, nth):
                hits[step] = hits.get(step, 0) + 1
        print(f"{number} points, killed during {hits}")
        assert sum(hits.values()) > count // 5, "hardly any kill happened"
        api = server.client()
        assert api.get("/v1/sandboxes").json()["sandboxes"] == []
        # The keeper holds nothing for those that are gone.
        def same():
            now = host.descriptor_kinds(keeper)
            return all(now.get(kind, 0) <= before.get(kind, 0) + 1 for kind in now)
        paddock.wait_for(same, 30, f"the keeper's descriptors are {before} again, not "
                                   f"{host.descriptor_kinds(keeper)}")
