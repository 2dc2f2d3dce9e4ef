"""Kill of whole trees where no cgroup can do it: provider local of a server without privilege, which may make none."""

import contextlib
import fcntl
import os
import signal

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import Server, check_error

UID = 54322  # nobody's
# Thirty that begin a session of their own, then fork, leave that to the child and end, without end. They pause, so that a
# busy machine is not made busier. All hold one lock: it is free when the last of them is dead.
RESTLESS = """
import fcntl, os, sys, time
lock = os.open("lock", os.O_CREAT | os.O_RDWR, 0o666)
fcntl.flock(lock, fcntl.LOCK_EX)
for n in range(30):
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(0.02)
            if os.fork():
                os._exit(0)
            os.setsid()
os.close(lock)
print("begun", flush=True)
time.sleep(1000)
"""


class Rootless(Server):
    def __init__(self):
        super().__init__({"providers": "local", "local_allowed": "on", "sandbox_mode": "local"})
        os.chown(self.directory, UID, UID)

    def argv(self):
        return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *super().argv()]


@pytest.fixture(scope="module")
def rootless():
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    with Rootless() as s:
        yield s


@pytest.fixture
def box(rootless):
    api = rootless.client()
    made = api.post("/v1/sandboxes", json={}).json()
    url = f"/v1/sandboxes/{made['id']}"
    check_error(api.post(url + "/pause"), 501, "unsupported", says="cgroups")  # the control: there are none
    yield api, url
    assert api.delete(url).status == 204


def is_held(lock):
    with open(lock, "rb") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True


def lock_of(api, url):
    return api.post(f"{url}/exec", json={"command": "touch lock; echo $PWD/lock"}).json()["stdout"].strip()


def marked(mark):
    """Those that run with this word, as far as they are seen: each lives for a moment only."""
    return [p for p in host.pids() if mark in host.command_line(p)]


@pytest.fixture
def mark(box):
    """A word of this test's; whoever still has it when that is over is killed."""
    word = f"restless-{os.urandom(6).hex()}"
    yield word
    for _ in range(10000 if is_held(lock_of(*box)) else 0):
        for pid in marked(word):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def start(api, url, mark, **more):
    """The process, and the file of its lock."""
    lock = lock_of(api, url)
    answer = api.post(f"{url}/processes", json={"argv": ["python3", "-c", RESTLESS, mark], **more})
    assert answer.status == 201, answer
    process = f"{url}/processes/{answer.json()['process_id']}"
    paddock.wait_for(lambda: "begun" in api.get(f"{process}/output").text, 60, "they run")
    assert is_held(lock)
    return process, lock


def test_a_kill_reaches_who_forks_without_end(box, mark):
    api, url = box
    process, lock = start(api, url, mark)
    other = api.post(f"{url}/processes", json={"argv": ["sleep", "1000"]}).json()["process_id"]
    answer = api.delete(process)
    assert answer.status in (200, 204), answer
    paddock.wait_for(lambda: not is_held(lock), 60, "all are dead")
    assert api.get(f"{url}/processes/{other}").json()["running"], "and nobody else is"


def test_a_time_out_does(box, mark):
    api, url = box
    _, lock = start(api, url, mark, timeout_s=paddock.seconds(3))
    paddock.wait_for(lambda: not is_held(lock), 120, "all are dead")


def test_other_signals_go_to_the_command(box):
    """It hears of them, and may go on."""
    api, url = box
    line = "trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    made = api.post(f"{url}/processes", json={"argv": ["bash", "-c", line]}).json()["process_id"]
    process = f"{url}/processes/{made}"
    output = f"{process}/output"
    paddock.wait_for(lambda: "ready" in api.get(output).text, 60, "it is ready")
    assert api.post(f"{process}/signal", json={"signal": int(signal.SIGUSR1)}).status in (200, 204)
    ended = paddock.wait_for(lambda: not (p := api.get(process).json())["running"] and p, 60, "it ends")
    assert ended["exit_code"] == 3, ended
