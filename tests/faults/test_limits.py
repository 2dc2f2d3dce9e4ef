"""Too few descriptors, slow readers, a log that nobody reads: sheds, says so, and recovers."""

import contextlib
import http.client
import os
import socket
import subprocess
import time

import pytest

from breaking import Box, Victim, api_metric, check_error
from paddock_testing import host
from paddock_testing import run as paddock

FILES = 140


@pytest.fixture(scope="module")
def server():
    with Victim() as v:
        yield v


@contextlib.contextmanager
def few_files(pid, spare):
    """The process may open `spare` descriptors more, and no others. Those are counted when it has neither
    opened nor closed one for a while: what the last call had open, or what is being made in advance, would
    be spare ones in a moment."""
    taken = paddock.settled(lambda: sorted(host.descriptors(pid)))
    free = [n for n in range(taken[-1] + 1) if n not in taken]
    # The limit is on the number that a new one gets, so holes count as spare ones.
    limit = free[spare] if spare < len(free) else taken[-1] + 1 + spare - len(free)
    _, hard = open_files(pid)
    set_open_files(pid, limit)
    try:
        yield
    finally:
        set_open_files(pid, hard)


def open_files(pid):
    line = [l for l in host.read_proc(pid, "limits").splitlines() if l.startswith("Max open files")]
    return [int(n) for n in line[0].split()[3:5]]


def set_open_files(pid, soft):
    """As the process's own user: root may not in every container."""
    subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={soft}:"], check=True,
                   user=host.uids(pid)[0], group=os.stat(f"/proc/{pid}").st_gid or None,
                   extra_groups=[])


def is_orderly(answer):
    """It worked, or the error says that it is a matter of capacity."""
    if answer.status < 400:
        return True
    check_error(answer, [503, 507], ["capacity", "no_space"])
    return False


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 4, 5, 6, 8, 10, 100])
def test_no_descriptors_left(server, api, box, spare):
    """Whatever is tried fails in an orderly way, and no sandbox is lost by it."""
    process = box.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
    api.get("/healthz")  # a connection that exists already
    with few_files(server.daemon(), spare):
        answers = [is_orderly(api.post("/v1/sandboxes", json={})),
                   is_orderly(box.try_exec("echo x; echo y >&2")),
                   is_orderly(api.post(f"{box.url}/processes", json={"command": "echo z"})),
                   is_orderly(api.post(f"{box.url}/processes",
                                       json={"command": "echo z", "pty": True})),
                   is_orderly(box.put_file("/tmp/f", b"x")),
                   is_orderly(api.get(f"{box.url}/metrics"))]
        assert api.get(f"{box.url}").status == 200
    assert answers[-1], "what needs no descriptor is answered"
    if spare == 0:
        assert not any(answers[:-1]), f"{answers}: there were descriptors left"
    if spare == 100:
        assert all(answers), f"{answers}: refused although there is enough"
    assert box.get()["state"] == "running"
    assert box.out("echo fine") == "fine\n"
    assert box.process(process)["running"]
    box.wait_output(process, b"\n10\n")
    others = [s["id"] for s in api.get("/v1/sandboxes").json()["sandboxes"] if s["id"] != box.id]
    for other in others:
        assert api.delete(f"/v1/sandboxes/{other}").status == 204


def test_connections_without_descriptors(server, api, box):
    """New connections wait or are closed; the server does not spin, and serves on afterwards."""
    daemon = server.daemon()
    api.get("/healthz")
    with few_files(daemon, 3):
        socks = [socket.create_connection((server.host, server.port)) for _ in range(20)]
        time.sleep(0.2)
        before = sum(os.times()[:2]), cpu_seconds(daemon)
        time.sleep(1)
        spent = cpu_seconds(daemon) - before[1]
        assert api.get("/healthz").status == 200
        for s in socks:
            s.close()
    assert spent < 0.5, f"{spent:.2f} s of processor time in a second"
    client = server.client()
    assert client.get("/healthz").status == 200
    client.close()
    assert box.out("echo fine") == "fine\n"


def cpu_seconds(pid):
    fields = host.read_proc(pid, "stat").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_started_with_few_descriptors():
    """The limit is the server's whole life long; sandboxes up to it, then capacity errors."""
    with Victim({"max_open_files": FILES}) as server:
        api = server.client()
        boxes, refused = [], None
        for _ in range(FILES):
            answer = api.post("/v1/sandboxes", json={})
            if answer.status != 201:
                refused = answer
                break
            boxes.append(answer.json()["id"])
        print(f"{len(boxes)} sandboxes with {FILES} descriptors")
        assert len(boxes) >= 3
        check_error(refused, 503, "capacity")
        states = {s["state"] for s in api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]}
        assert states == {"running"}
        for name in boxes[: len(boxes) // 2 + 1]:
            assert api.delete(f"/v1/sandboxes/{name}").status == 204
        box = Box(api)
        assert box.out("echo fine") == "fine\n"
        api.close()
        time.sleep(0.2)
        server.kill_and_restart()
        assert box.out("echo fine") == "fine\n"


def test_few_descriptors_of_the_keeper(server, api, box):
    """A keeper that cannot make a sandbox says so and keeps those that it has."""
    with few_files(server.keeper(), 1):
        answers = [is_orderly(api.post("/v1/sandboxes", json={})) for _ in range(3)]
        assert box.out("echo fine") == "fine\n"
    assert not any(answers), "it had descriptors left"
    assert box.get()["state"] == "running"
    other = Box(api)
    other.delete()


def test_a_reader_who_has_all_goes_on_after_a_restart(server, box):
    """Who asks from the end on has read what was before, from the daemon that is gone: the writer does not
    wait until that is read again."""
    process = box.start("head -c 70000 /dev/zero; read a; echo $a; read b", back_pressure=True,
                        spool_max_bytes=65536, stdin=True)
    paddock.wait_for(lambda: len(box.output(process)) == 70000, 20, "all of it is there")
    server.kill_and_restart()
    assert box.output(process, offset=70000) == b""
    box.write(process, b"on\n")
    paddock.wait_for(lambda: box.output(process, offset=70000) == b"on\n", 10, "it goes on")
    box.write(process, b"over\n")
    assert box.wait_end(process)["exit_code"] == 0


def test_back_pressure_goes_on_after_a_restart(server, box):
    """A writer that is held up until somebody reads; every byte comes, also the last ones."""
    size = 1 << 20
    process = box.start(f"head -c {size} /dev/urandom | tee /tmp/copy; sleep 0.2",
                        back_pressure=True, spool_max_bytes=65536)
    paddock.wait_for(lambda: box.process(process)["stdout_bytes"] >= 65536, 20, "it is held up")
    assert box.process(process)["running"]
    first = box.output(process, limit=65536)
    assert len(first) >= 65536
    got, kills = first, 0
    deadline = time.monotonic() + paddock.seconds(30)
    while len(got) < size and time.monotonic() < deadline:
        if kills < 3 and len(got) > size * (kills + 1) // 5:
            server.kill_and_restart()
            kills += 1
        piece = box.output(process, offset=len(got))
        got += piece
        if not piece:
            time.sleep(0.01)
    assert len(got) == size and kills == 3, (
        len(got), kills, box.process(process), host.descriptors(server.daemon()), server.log()[-2000:])
    assert got == box.read_file("/tmp/copy")
    assert box.wait_end(process)["exit_code"] == 0


def test_the_tail_behind_back_pressure(server, box):
    """What is in the pipe when a held-up command ends belongs to it."""
    process = box.start("head -c 100000 /dev/zero", back_pressure=True, spool_max_bytes=65536)
    box.wait_end(process)
    got = b""
    while piece := box.output(process, offset=len(got)):
        got += piece
    assert len(got) == 100000


def test_an_environment_that_is_too_large(box):
    """The shell is not held up by a state that nobody can keep."""
    began = time.monotonic()
    result = box.exec("export BIG=$(head -c 100000 /dev/zero | tr '\\0' x); cd /opt; echo ok")
    assert (result["stdout"], result["exit_code"], result["state"]) == ("ok\n", 0, "kept")
    assert time.monotonic() - began < paddock.seconds(10)
    assert box.exec("export SMALL=1; cd /usr")["state"] == "updated"
    assert box.out("pwd; echo $SMALL; echo ${#BIG}") == "/usr\n1\n0\n"


def test_a_log_that_nobody_reads():
    """stderr is a pipe that is full: requests are served all the same."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x" * 4096)
    os.set_blocking(write_end, True)

    class Mute(Victim):
        def start(self):
            self.starts += 1
            with open(os.path.join(self.directory, f"log.{self.starts}"), "wb") as log:
                self.process = subprocess.Popen(
                    self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=write_end,
                    env=self.env, start_new_session=True)

            def answers():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    return self.client().get("/readyz").status == 200
                return False
            paddock.wait_for(answers, 20, "the server is ready")
            self.note_instances()
            return self

    with Mute() as server:
        api = server.client()
        for _ in range(3):
            box = Box(api)
            assert box.out("echo fine") == "fine\n"
            box.delete()
        assert api_metric(api, "paddock_log_dropped_total") > 0, "somebody has read the log"
    os.close(read_end)
    os.close(write_end)
