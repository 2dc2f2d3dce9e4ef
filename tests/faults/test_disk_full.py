"""No space in the state directory: clear errors, nothing that was acknowledged is lost, and all is
well again when there is space, without a restart."""

import contextlib
import json
import os
import subprocess
import time

import pytest

from breaking import Box, Later, Victim, api_metric, check_counter, check_error, read_events
from paddock_testing import run as paddock

SIZE = 8 << 20
STATES = ("creating", "running", "paused", "stopping", "gone")  # as the database counts them


class SmallDisk(Victim):
    """The state directory is a file system of its own that can be filled."""

    def __init__(self, settings=None):
        super().__init__({"storage": "memory", **(settings or {})})
        os.mkdir(self.state_dir)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "paddock-test",
                        self.state_dir], check=True)
        self.ballast = os.path.join(self.state_dir, "ballast")

    def fill(self):
        """To the last byte: also the holes that the database has already, and what the calls before give
        back a moment later."""
        def full():
            with open(self.ballast, "ab", buffering=0) as f:
                for piece in (1 << 16, 1 << 12):
                    with contextlib.suppress(OSError):
                        while True:
                            f.write(b"b" * piece)
            return os.path.getsize(self.ballast)
        paddock.settled(full)

    def free(self):
        if os.path.exists(self.ballast):
            os.unlink(self.ballast)

    def left_behind(self):
        found = super().left_behind()
        found["mounts"] = [m for m in found.get("mounts", []) if "paddock-test" not in m]
        return {kind: what for kind, what in found.items() if what}

    def close(self):
        try:
            self.free()
            super().close()
        finally:
            subprocess.run(["umount", self.state_dir], check=False)
            subprocess.run(["rm", "-rf", self.directory], check=False)


@pytest.fixture(scope="module")
def server():
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    with SmallDisk() as v:
        yield v


@pytest.fixture
def api(server):
    client = server.client()
    yield client
    server.free()
    client.close()


@pytest.fixture
def box(api, server):
    b = Box(api)
    yield b
    server.free()
    b.delete()


def works_again(box):
    def fine():
        answer = box.try_exec("echo fine", headers={"Idempotency-Key": os.urandom(8).hex()})
        return answer.status == 200 and answer.json()["stdout"] == "fine\n"
    paddock.wait_for(fine, 10, "commands work again")


def test_calls_on_a_full_disk(server, api, box):
    box.exec("cd /tmp; export A=1")
    server.fill()
    # What must be written down is refused, and was not done.
    check_error(api.post("/v1/sandboxes", json={}), 507, "no_space")
    keyed = box.try_exec("echo x >> /tmp/ran", headers={"Idempotency-Key": "full"})
    check_error(keyed, 507, "no_space")
    started = api.post(f"{box.url}/processes", json={"command": "echo x >> /tmp/ran"})
    check_error(started, 507, "no_space")
    # What needs no disk of the server's goes on.
    assert box.get()["state"] == "running"
    assert api.get("/healthz").status == 200
    assert [s["id"] for s in api.get("/v1/sandboxes").json()["sandboxes"]] == [box.id]
    assert box.exec("test ! -e /tmp/ran")["exit_code"] == 0
    assert box.put_file("/tmp/file", b"contents").status in (200, 201)
    assert box.read_file("/tmp/file") == b"contents"
    server.free()
    works_again(box)
    assert box.out("cat /tmp/ran 2>/dev/null; pwd; echo $A") == "/tmp\n1\n"
    other = Box(api)
    assert other.out("echo fine") == "fine\n"
    other.delete()


def test_output_that_cannot_be_kept(server, box):
    """A command that ends while its output has no place: never an answer that lacks some of it. It
    takes longer than those few ms in which a request's thread answers out of its own memory."""
    line = "sleep 0.2; echo lost; exit 3"
    server.fill()
    answer = box.try_exec(line)
    check_error(answer, 507, "no_space")
    keys = {"Idempotency-Key": "output"}
    server.free()
    works_again(box)
    result = box.exec("echo kept; exit 3", headers=keys)
    assert (result["stdout"], result["exit_code"]) == ("kept\n", 3)
    # The one whose output waited has ended, too, with all of it.
    paddock.wait_for(lambda: box.get()["processes"] == 0, 10, "nothing runs any more")
    listed = box.api.get(f"{box.url}/processes").json()["processes"]
    waited = [p for p in listed if p["command"] == line]
    assert len(waited) == 1 and waited[0]["exit_code"] == 3, listed
    assert box.output(waited[0]["process_id"]) == b"lost\n"


def test_short_output_needs_no_space(server, box):
    """A command that is over at once is answered whole, or with the error: which of them is the clock's."""
    server.fill()
    for number in range(20):
        answer = box.try_exec(f"echo {number}; exit 3")
        if answer.status != 200:
            check_error(answer, 507, "no_space")
            break
        result = answer.json()
        assert (result["stdout"], result["exit_code"]) == (f"{number}\n", 3)
    server.free()
    works_again(box)


def test_output_waits_for_space(server, box):
    """A writer is held up, and loses nothing."""
    process = box.start("seq 1 300000; echo end >&2; exit 4")
    stream = box.api.stream("GET", f"{box.url}/processes/{process}/output?follow=true",
                            headers={"Accept": "text/event-stream"})
    server.fill()
    time.sleep(1)
    server.free()
    events = read_events(stream)
    stream.close()
    assert box.wait_end(process)["exit_code"] == 4
    assert check_counter(box.output(process)) == 300000
    assert box.output(process, stream="stderr") == b"end\n"
    told = "".join(json.loads(d)["text"] for name, d, _ in events if name == "stdout")
    assert check_counter(told.encode()) == 300000


def test_state_changes_on_a_full_disk(server, api, box):
    """What could be done but not written down is written down later, or reported as not done."""
    server.fill()
    directory = box.try_exec("cd /opt")
    paused = api.post(f"{box.url}/pause")
    assert directory.status in (200, 507) and paused.status in (200, 507)
    state = box.get()["state"]
    cwd = "/opt" if directory.status == 200 else "/workspace"
    server.free()
    paddock.wait_for(lambda: server.rows("SELECT cwd, state FROM sessions WHERE id = ?", box.id) ==
                     [(cwd, STATES.index(state))], 20, "it is written down")
    server.kill_and_restart()
    assert box.get()["state"] == state
    if state == "paused":
        box.action("resume")
    works_again(box)
    assert box.out("pwd") == f"{cwd}\n"


def test_ends_on_a_full_disk(server, api):
    """Deleting frees space, so it must work without any."""
    boxes = [Box(api) for _ in range(3)]
    for b in boxes:
        b.start("seq 1 50000; sleep 100")
    server.fill()
    for b in boxes:
        b.delete()
        assert b.get()["state"] == "gone"
    paddock.wait_for(lambda: not os.listdir(os.path.join(server.state_dir, "server", "spool")), 10,
                     "the spools are removed")
    server.free()
    paddock.wait_for(lambda: not server.rows("SELECT id FROM sessions WHERE state != ?",
                                             STATES.index("gone")), 20, "the ends are written down")
    server.kill_and_restart()
    for b in boxes:
        assert b.get()["end_cause"] == "killed", b.get()
    assert api.get("/v1/sandboxes").json()["sandboxes"] == []


def test_a_start_on_a_full_disk(server, box):
    """It may refuse, with the reason; when it does not, everything is there."""
    process = box.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
    box.wait_output(process, b"5\n")
    server.fill()
    server.kill()
    refused = False
    try:
        server.restart()
    except AssertionError as error:
        refused = True
        assert "space" in str(error), error
        assert server.process.poll() not in (None, 0)
    server.free()
    if refused:
        server.restart()
    assert box.get()["state"] == "running"
    paddock.wait_for(lambda: check_counter(box.output(process)) > 10, 10, "it goes on")
    works_again(box)


def test_the_audit_log_on_a_full_disk(server, api, box):
    log = os.path.join(server.state_dir, "server", "audit.log")
    box.exec("true # before")
    server.fill()
    for n in range(200):
        assert box.exec(f"true # during {n} {'x' * 100}")["exit_code"] == 0
    server.free()
    works_again(box)
    box.exec("true # after")
    paddock.wait_for(lambda: "# after" in open(log, encoding="utf-8").read(), 5, "it is logged")
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            json.loads(line)  # no line is cut
    assert api_metric(api, "paddock_audit_lost_total") > 0, "the disk was not full"


def test_no_inodes(server, api, box):
    """Files cannot be made although there are bytes."""
    def used():
        now = os.statvfs(server.state_dir)
        return now.f_files - now.f_ffree

    def refused():
        """None more than there are; files of the server may come and go just then."""
        count = paddock.settled(used)
        if subprocess.run(["mount", "-o", f"remount,nr_inodes={count}", server.state_dir],
                          check=False).returncode:
            return None
        answer = box.try_exec("echo something")
        return answer.status != 200 and answer

    try:
        check_error(paddock.wait_for(refused, 60, "a command is refused"), 507, "no_space")
    finally:
        subprocess.run(["mount", "-o", "remount,nr_inodes=100000", server.state_dir], check=True)
    works_again(box)
