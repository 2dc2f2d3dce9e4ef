"""kill -9 of daemon, keeper and broker of docker sandboxes while their commands print.

A daemon's death and a broker's change nothing for a command: its client comes back with its key and
has every byte and one end. A keeper's takes its sandboxes along: what they printed before is there, the
end is told once, and their containers are gone. Whoever was killed: the engine has one container for each
sandbox that lives, and no other.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from kept_files import keeper_of
from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.server import check_error

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))
from breaking import Box, Later, Victim, check_counter, read_events  # pylint: disable=wrong-import-position

ALONE = ("daemon", "keeper", "broker")
TOGETHER = ("keeper and brokers", "everybody")
# More than a pipe holds before and behind lines that come slowly, until somebody was killed.
PRINT = ("echo x >>/workspace/{0}; seq 1 20000; i=20000; "
         "until test -e /workspace/{0}.go; do i=$((i+1)); echo $i; sleep 0.01; done; "
         "seq $((i+1)) $((i+20000)); echo $((i+20000)) >&2; exit 3")


@pytest.fixture(scope="module")
def server(dockerd, images):
    with Victim({"providers": "jail,docker", "docker_host": dockerd.host, "image_pull": "never"}) as v:
        # A client that tries again and again would open the breaker: that is tested elsewhere.
        admin = v.client(v.run("key", "create", "--admin", "--tenant", "ops").stdout.strip())
        answer = admin.put("/v1/router", json={"breaker": {"open_s": 1, "open_max_s": 1}})
        assert answer.status == 200, answer
        yield v
    assert not dockerd.containers() and not dockerd.roots(), "containers are left behind"


def brokers(server):
    """Those that are programs of their own already."""
    keeper = keeper_of(server, "docker")
    return [p for p in host.descendants(keeper) if "broker" in host.command_line(p)]


def kill(server, victim):
    """A server that was killed is started again; everybody else is replaced by those who are left."""
    server.note_instances()
    pids = []
    if victim == "broker":
        pids = [random.choice(paddock.wait_for(lambda: brokers(server), 20, "there is a broker"))]
    elif victim != "daemon":
        pids = [keeper_of(server, "docker")] + (brokers(server) if victim in TOGETHER else [])

    if victim in ("daemon", "everybody"):
        server.kill("daemon")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if victim in ("daemon", "everybody"):
        server.restart()


class Printer:
    """One command, followed over the deaths of servers by its key: what came of it, and its ends."""

    def __init__(self, box, key):
        self.box, self.key = box, key
        self.out, self.err, self.ends = b"", b"", []
        self.began = self.lost = False
        self.thread = Later(self.follow)

    def ask(self, last):
        headers = {"Accept": "text/event-stream", "Idempotency-Key": self.key}
        if last:
            headers["Last-Event-ID"] = last
        return self.box.api.stream("POST", f"{self.box.url}/exec", headers=headers, json={
            "argv": ["/bin/bash", "-c", PRINT.format(self.key)], "timeout_s": paddock.seconds(120)})

    def follow(self):
        last, deadline = None, time.monotonic() + paddock.seconds(120)
        while not self.ends and not self.lost:
            assert time.monotonic() < deadline, f"{self.key} does not end"
            try:
                response = self.ask(last)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # no server
                continue
            try:
                last = self.take(response) or last
            finally:
                response.close()

    def take(self, response):
        """The events of one connection; gives the last one's number."""
        if response.status != 200:
            text = response.read().decode(errors="replace")
            assert response.status in (410, 503), (response.status, text)
            self.lost = response.status == 410
            return None

        self.began = True
        last = None
        for name, data, number in read_events(response):
            last = number or last
            if name == "stdout":
                self.out += json.loads(data)["text"].encode()
            elif name == "stderr":
                self.err += json.loads(data)["text"].encode()
            elif name == "exit":
                self.ends.append(json.loads(data))
        return last

    def go_on(self):
        assert self.box.put_file(f"/workspace/{self.key}.go", b"").status in (200, 201)

    def end(self):
        self.thread.end(150)
        if self.thread.error:
            raise self.thread.error
        return self


def make_box(server, images):
    """A sandbox; while a keeper or a broker is replaced that is refused, with the advice to try again."""
    api = server.client()

    def made():
        answer = api.post("/v1/sandboxes", json={"provider": "docker", "image": images["bash"]})
        if answer.status == 201:
            return Box(api, answer.json()["id"])
        check_error(answer, 503, ["capacity", "lost"])
        return None
    return paddock.wait_for(made, 60, "a sandbox can be made")


def come_and_go(server, images):
    """Work for a broker while somebody is killed."""
    make_box(server, images).delete()


def check_whole(printer):
    """Nobody who died was of any concern to it, and it ran once."""
    assert [e["exit_code"] for e in printer.ends] == [3], (printer.key, printer.ends, printer.lost)
    assert check_counter(printer.out) == int(printer.err), printer.key
    assert printer.box.out(f"cat /workspace/{printer.key}") == "x\n"


def check_cut(printer):
    """It was ended in the middle: what came of it is in order, and the end was told once."""
    assert not printer.out or check_counter(printer.out)
    assert [e["stopped_by"] for e in printer.ends] == ([] if printer.lost else ["sandbox"]), printer.ends
    paddock.wait_for(lambda: printer.box.get()["end_cause"], 60, "it is lost")
    told = printer.box.get()
    assert told["end_cause"] == "lost" and "keeper" in told["end_reason"], told


def check_engine(server, dockerd, boxes):
    """The engine has a container for each sandbox, and no other."""
    def only_ours():
        known = server.client().get("/v1/sandboxes?limit=1000").json()["sandboxes"]
        return ({s["id"] for s in known} == {b.id for b in boxes}
                and len(dockerd.containers()) == len(boxes))

    paddock.wait_for(only_ours, 60, "one container for each sandbox")


def delete_strays(server, boxes):
    """Sandboxes whose making or deleting was broken off by the daemon's death."""
    api = server.client()
    for sandbox in api.get("/v1/sandboxes?limit=1000").json()["sandboxes"]:
        if sandbox["id"] not in {b.id for b in boxes}:
            answer = api.delete(f"/v1/sandboxes/{sandbox['id']}")
            assert answer.status in (204, 404), answer


def one_round(server, images, dockerd, boxes, number, victim):
    while len(boxes) < 2:
        boxes.append(make_box(server, images))
    printers = [Printer(box, f"run-{number}-{n}") for n, box in enumerate(boxes)]
    guest = Later(come_and_go, server, images)
    if "keeper" in victim or victim == "everybody":  # of one that did not begin nobody knows anything
        paddock.wait_for(lambda: all(p.began for p in printers), 60, "they print")
    time.sleep(random.uniform(0, 0.5))
    kill(server, victim)

    if victim in ("daemon", "broker"):
        for printer in printers:
            printer.go_on()
            check_whole(printer.end())
    else:
        for printer in printers:
            check_cut(printer.end())
        boxes.clear()

    # A call that a daemon's death broke off promises nothing; every other one is answered.
    error = guest.end(120).error
    assert error is None or (victim in ("daemon", "everybody") and not isinstance(error, AssertionError)), error
    delete_strays(server, boxes)
    check_engine(server, dockerd, boxes)


def test_kills_in_turn_and_at_random(server, images, dockerd):
    boxes, rounds = [], paddock.rounds(6, 300, 6)
    for number in range(rounds):
        # The cgroups of a keeper that was killed with all its brokers are removed by the next one that ends, when they
        # are 10 s old (sweep.c): so not in the last rounds.
        together = TOGETHER if number < rounds - 20 else ()
        in_turn = number < rounds // 2
        victim = ALONE[number % 3] if in_turn else random.choice(ALONE + together)
        print(f"round {number}: {victim}", flush=True)
        one_round(server, images, dockerd, boxes, number, victim)
    for box in boxes:
        box.delete()
    check_engine(server, dockerd, [])
