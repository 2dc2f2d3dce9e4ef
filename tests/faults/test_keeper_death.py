"""Deaths below the server: the keeper's, and that of a sandbox's first process."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from breaking import Box, Later, Victim, check_error
from paddock_testing import host
from paddock_testing import run as paddock


@pytest.fixture(scope="module")
def server():
    with Victim({"pool_min": 1, "pool_max": 2}) as v:
        yield v


@pytest.fixture
def api(server):
    client = server.client()
    yield client
    client.close()


def init_of(box, word):
    """The host's pid of the sandbox's first process."""
    box.start(f"exec -a {word} sleep 1000")
    paddock.wait_for(lambda: host.with_word("1000") and find(word), 10, "it runs")
    return host.jail_init(find(word))


def find(word):
    for pid in host.pids():
        if host.command_line(pid)[:1] == [word]:
            return pid
    return None


def wait_gone(box, seconds=10):
    began = time.monotonic()
    paddock.wait_for(lambda: box.get()["state"] == "gone", seconds, "the sandbox is gone")
    print(f"gone after {(time.monotonic() - began) * 1000:.0f} ms")
    sandbox = box.get()
    assert sandbox["end_cause"] == "lost", sandbox
    assert sandbox["end_reason"] and sandbox["ended_at"]
    return sandbox


def first_box(api):
    """The first sandbox after a keeper's death: refused until there is another keeper, for no other
    reason."""
    def made():
        answer = api.post("/v1/sandboxes", json={})
        if answer.status == 201:
            return Box(api, answer.json()["id"])
        check_error(answer, 503, "capacity")
        return None
    return paddock.wait_for(made, 15, "a sandbox can be made again")


def check_no_spools(server):
    """But for the moment in which the pool tries a sandbox out."""
    folder = os.path.join(server.state_dir, "server", "spool")
    paddock.wait_for(lambda: not host.files_below(folder), 10, "no spool is left")


def test_the_keeper_dies(server, api):
    boxes = [Box(api, user_id="u", thread_id=str(n)) for n in range(5)]
    boxes[3].action("pause")
    inits = {init_of(b, f"word-{b.id}") for b in boxes[:3]}
    running = Later(boxes[0].try_exec, "sleep 60", timeout_s=50)
    follower = Later(boxes[1].api.get, f"{boxes[1].url}/processes/"
                     f"{boxes[1].start('echo here; sleep 60')}/output?follow=true")
    paddock.wait_for(lambda: boxes[0].get()["processes"] >= 2, 20, "the call is under way")
    births = {init: host.birth(init) for init in inits}
    server.note_instances()
    old = server.keeper()
    os.kill(old, signal.SIGKILL)
    for b in boxes:
        assert "keeper" in wait_gone(b)["end_reason"]
        error = check_error(b.try_exec("true"), 410, "session_lost")
        assert b.id in error["message"]
    # Whoever waited hears of it.
    assert running.end(15).error is None
    answer = running.value
    assert answer.status in (200, 410), answer
    if answer.status == 200:
        assert answer.json()["stopped_by"] == "sandbox", answer
    follower.end(15)
    # The guardian starts another one; no process of the old jails is left.
    paddock.wait_for(lambda: server.keepers() and old not in server.keepers(), 10, "a new keeper")
    server.note_instances()
    paddock.wait_for(lambda: not any(host.birth(p) == births[p] for p in inits), 10,
                     "the jails are gone")

    began = time.monotonic()
    first_box(api)
    print(f"creates again after {(time.monotonic() - began) * 1000:.0f} ms")
    # Never silently anew; on request, and then it is said.
    check_error(api.put("/v1/sessions/u/1", json={}), 410, "session_lost")
    again = api.put("/v1/sessions/u/1", json={"auto_retry": True})
    assert again.status == 201, again
    assert again.json()["recreated"] and again.json()["replaces"] == boxes[1].id
    for sandbox in api.get("/v1/sandboxes").json()["sandboxes"]:
        assert api.delete(f"/v1/sandboxes/{sandbox['id']}").status == 204
    check_no_spools(server)


def test_keeper_and_server_die_together(server, api):
    box = Box(api)
    box.start("while :; do echo x; sleep 0.01; done")
    server.note_instances()
    os.kill(server.keeper(), signal.SIGKILL)
    server.kill()
    server.restart()
    wait_gone(box)
    check_error(box.try_exec("true"), 410, "session_lost")
    other = first_box(api)
    assert other.out("echo fine") == "fine\n"
    other.delete()
    box.delete()
    check_no_spools(server)


def test_no_breaker_opens_while_a_keeper_is_started_again():
    """Whoever asks meanwhile is refused at once, and as soon as it is there it is used."""
    with Victim({"providers": "local,jail", "local_allowed": "on", "sandbox_mode": "local"}) as server:
        api = server.client()
        place = os.path.join(server.run_dir, "keeper-local.sock")
        keeper, = [p for p in server.keepers()
                   if place in host.command_line(p) and host.parent(p) not in server.keepers()]
        os.kill(keeper, signal.SIGKILL)

        refused, until = 0, time.monotonic() + paddock.seconds(20)
        while (answer := api.post("/v1/sandboxes", json={})).status != 201 and time.monotonic() < until:
            assert answer.status in (410, 503), answer
            refused += 1
            time.sleep(0.002)
        server.note_instances()
        told = {b["provider"]: b for b in api.get("/v1/router").json()["breakers"]}["local"]
        assert (answer.status, told["state"]) == (201, "closed"), (answer, told, refused)
        assert answer.json()["provider"] == "local"
        print(f"refused {refused} times")
        assert api.delete(f"/v1/sandboxes/{answer.json()['id']}").status == 204
        api.close()


def unheard(server):
    """How many connections the keeper has not accepted: the kernel lists them without an inode, and by the name
    that the socket was bound to before it got its own."""
    bound = os.path.join(server.run_dir, "keeper.soc~")
    with open("/proc/net/unix", encoding="utf-8") as f:
        return sum(row.split()[6:] == ["0", bound] for row in f)


def test_the_keeper_dies_while_a_server_starts():
    """Guardian and daemon have found it, and the daemon waits for its first word: the guardian starts
    another one, and the daemon goes on with that. It waits for 5 s: what is looked at meanwhile is
    one file, which does not take longer on a busy machine."""
    with Victim() as server:
        old = server.keeper()
        server.kill()
        os.kill(old, signal.SIGSTOP)
        before = unheard(server)
        server.launch()
        # The guardian asks whose it is, and stays connected; then comes the daemon.
        paddock.wait_for(lambda: unheard(server) >= before + 3, 20, "the daemon waits")
        os.kill(old, signal.SIGKILL)
        server.wait_ready()
        assert "keeper.lost" in server.last_log()
        box = Box(server.client())
        assert box.out("echo fine") == "fine\n"
        box.delete()


def test_the_keeper_dies_with_roots_to_remove(server, api):
    """What it had promised to delete is deleted by the next one; what is in use stays."""
    for _ in range(3):
        for b in [first_box(api), Box(api), Box(api)]:
            b.delete()
        server.note_instances()
        old = server.keeper()
        os.kill(old, signal.SIGKILL)
        paddock.wait_for(lambda: server.keepers() and old not in server.keepers(), 10, "a new one")
        paddock.wait_for(lambda: api.get("/readyz").status == 200, 10, "the server has found it")
        server.note_instances()
    box = first_box(api)
    roots = os.path.join(server.state_dir, "roots")

    def only_live():
        live = {f"sb-{box.id}"} if os.path.exists(f"{roots}/sb-{box.id}") else set()
        pool = api.get("/metrics").text.count("\npaddock_pool_ready ")
        others = {name for name in os.listdir(roots) if not name.startswith(".blank-")} - live
        return len(others) <= 2 + pool
    if os.path.isdir(roots):
        paddock.wait_for(only_live, 20, "the roots are deleted")
    assert box.out("echo fine") == "fine\n"
    box.delete()


def test_of_keepers_that_start_at_once_one_stays(tmp_path):
    """A guardian that is killed may just have started one, and the next guardian starts another: all
    find the socket of the one that was killed."""
    path = str(tmp_path / "keeper.sock")
    for _ in range(paddock.rounds(60, 500, 3)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(path)
        keepers = [subprocess.Popen([paddock.PADDOCK, "keeper", "--socket", path],
                                    stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
        try:
            paddock.wait_for(lambda: sum(k.poll() is None for k in keepers) == 1, 20, "one is left")
            last, = [k for k in keepers if k.poll() is None]
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(path)
                pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            assert pid == last.pid
            assert all(b"another keeper" in k.stderr.read() for k in keepers if k is not last)
        finally:
            for k in keepers:
                paddock.end(k)
        paddock.wait_for(lambda: not os.path.exists(path), 20, "its socket is gone")


KNOCKS = """
import errno, os, socket, sys
os.chdir(sys.argv[1])
os.setresgid(65534, 65534, 65534)
os.setresuid(*[int(sys.argv[2])] * 3)
print("ready", flush=True)
seen = set()
while "EACCES" not in seen and "connected" not in seen:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        try:
            s.connect("keeper.sock")
            seen.add("connected")
        except OSError as e:
            seen.add(errno.errorcode[e.errno])
print(*sorted(seen))
"""


def test_a_keeper_is_its_owners_before_it_can_be_connected_to(tmp_path):
    """A daemon that waits for the next keeper gives up when its permission is missing. Others never
    get in."""
    owner, stranger = "62001", "62002"
    tmp_path.chmod(0o755)
    for _ in range(paddock.rounds(25, 500, 3)):
        clients = [subprocess.Popen([sys.executable, "-c", KNOCKS, str(tmp_path), uid], text=True,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
                   for uid in (owner, stranger)]
        assert all(c.stdout.readline() == "ready\n" for c in clients)
        keeper = subprocess.Popen([paddock.PADDOCK, "keeper", "--socket", str(tmp_path / "keeper.sock"),
                                   "--owner", owner], stdin=subprocess.DEVNULL)
        try:
            seen = [set(c.communicate(timeout=paddock.seconds(20))[0].split()) for c in clients]
        finally:
            for p in [*clients, keeper]:
                paddock.end(p)
        assert "connected" in seen[0] and "EACCES" not in seen[0], seen
        assert "EACCES" in seen[1] and "connected" not in seen[1], seen


def test_init_is_killed(server, api):
    box, other = Box(api), Box(api)
    init = init_of(box, f"word-{box.id}")
    waiting = Later(box.try_exec, "sleep 60", timeout_s=50)
    paddock.wait_for(lambda: box.get()["processes"] >= 2, 20, "the call is under way")
    os.kill(init, signal.SIGKILL)
    assert "first process" in wait_gone(box)["end_reason"]
    check_error(box.try_exec("true"), 410, "session_lost")
    assert waiting.end(10).error is None
    assert waiting.value.status in (200, 410), waiting.value
    assert other.out("echo fine") == "fine\n"
    other.delete()


def test_init_is_killed_while_nobody_looks(server, api):
    box = Box(api)
    init = init_of(box, f"word-{box.id}")
    server.kill()
    os.kill(init, signal.SIGKILL)
    server.restart()
    wait_gone(box)
    check_error(box.try_exec("true"), 410, "session_lost")


def test_init_that_does_not_answer(server, api):
    """Stopped, so that it is there but silent: calls end at their time, and so can the sandbox."""
    box, other = Box(api), Box(api)
    init = init_of(box, f"word-{box.id}")
    birth = host.birth(init)
    os.kill(init, signal.SIGSTOP)
    began = time.monotonic()
    answer = box.try_exec("true", timeout_s=1)
    assert time.monotonic() - began < paddock.seconds(10)
    assert answer.status != 200 or answer.json()["timed_out"], answer
    assert other.out("echo fine") == "fine\n"
    box.delete()
    paddock.wait_for(lambda: host.birth(init) != birth, 10, "it is gone")
    other.delete()


def test_a_silent_init_holds_up_no_other_sandbox(server, api):
    """Many commands wait in a sandbox that is silent. One of another that fails, and is therefore
    looked at before its end is told, does not wait for any of them."""
    box, other = Box(api), Box(api)
    os.kill(init_of(box, f"word-{box.id}"), signal.SIGSTOP)
    waiting = [Later(box.try_exec, "true", timeout_s=paddock.seconds(20)) for _ in range(15)]
    time.sleep(paddock.span(0.1))
    began = time.monotonic()
    answers = [other.try_exec("exit 3").json() for _ in range(5)]
    took = time.monotonic() - began
    assert all(later.is_alive() for later in waiting), "the control: they do wait"
    assert [a["exit_code"] for a in answers] == [3] * 5
    assert took < paddock.seconds(5), took
    box.delete()
    for later in waiting:
        later.end()
    other.delete()


def test_silent_inits_do_not_hold_up_a_start(server, api):
    boxes = [Box(api) for _ in range(4)]
    good = Box(api)
    for b in boxes:
        os.kill(init_of(b, f"word-{b.id}"), signal.SIGSTOP)
    server.kill()
    took = server.restart()
    print(f"with {len(boxes)} silent sandboxes: answers after {took * 1000:.0f} ms")
    assert good.out("echo fine") == "fine\n"
    for b in boxes:
        wait_gone(b, 20)
        b.delete()
    good.delete()
