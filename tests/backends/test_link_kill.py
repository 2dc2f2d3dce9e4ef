"""Kills and cuts at random around sandboxes elsewhere, on links with delay, while bytes go both ways.

A second Paddock rents the sandboxes out (paddock_testing/rented.py); between it and the server is a way that cuts every
connection at any byte and makes each byte late. A command echoes its input, which is more than pipes and rings hold.
Cuts and the deaths of stand-ins, carriers, brokers, daemons and keepers, and of a keeper and its daemon at once, change
nothing: every byte comes in both directions, the end once, and the command ran once. The death of the box's own end of a link, of
a stand-in's guard, and of a keeper together with its safe, takes the sandbox along: what came before is in order, the end is told once, and the sandbox elsewhere
is ended.

PADDOCK_KILLS=N: so many of each victim, a third with each delay (at night 1,000; by day a few)."""

import contextlib
import os
import random
import signal
import time

import pytest

from elsewhere import make_box
from elsewhere import strike as strike_near
from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.cutter import Cutter
from paddock_testing.rented import Landlord
from test_docker_kill import Printer
from test_e2b import tenant

from breaking import Later  # pylint: disable=import-error,wrong-import-order

KILLS = int(os.environ.get("PADDOCK_KILLS") or (1000 if paddock.NIGHTLY else 0))
DELAYS_MS = (0, 20, 100)  # of a way there and back
HARMLESS = ("cut", "stand-in", "carrier", "broker", "daemon", "keeper", "both")
# How many sandboxes a round has: where each has its own victim that is so many kills.
DEADLY = {"guard": 4, "far end": 4, "safe": 2, "all": 2}

# A third at once, then slowly until somebody was killed, then the rest at once.
LINES, SLOW_FROM = 9000, 3000
ECHO = ("echo x >>/workspace/{0}; echo ran >&2; n=0; while read -r line; do echo \"$line\"; n=$((n+1)); "
        f"if ((n > {SLOW_FROM})) && ! test -e /workspace/{{0}}.go; then sleep 0.01; fi; done; echo $n >&2; exit 3")


class Echo(Printer):
    """A command whose input is its output, followed over the deaths of servers by its key."""

    def __init__(self, box, key):
        self.given = "".join(f"{key:.12} {n:012d}\n" for n in range(LINES)).encode()
        super().__init__(box, key)

    def ask(self, last):
        headers = {"Accept": "text/event-stream", "Idempotency-Key": self.key}
        if last:
            headers["Last-Event-ID"] = last
        return self.box.api.stream("POST", f"{self.box.url}/exec", headers=headers, json={
            "argv": ["/bin/bash", "-c", ECHO.format(self.key)], "stdin": self.given.decode(),
            "timeout_s": paddock.seconds(120)})


def check_whole(echo):
    assert [e["exit_code"] for e in echo.ends] == [3], (echo.key, echo.ends, echo.lost)
    assert echo.out == echo.given, f"{echo.key}: {len(echo.out)} bytes of {len(echo.given)}, or others"
    assert echo.err == b"ran\n%d\n" % LINES, echo.err
    assert echo.box.out(f"cat /workspace/{echo.key}") == "x\n"


def check_cut_off(echo):
    assert echo.given.startswith(echo.out), f"{echo.key}: {len(echo.out)} bytes are not those that were given"
    assert echo.err in (b"", b"ran\n"), echo.err
    assert [e["stopped_by"] for e in echo.ends] == ([] if echo.lost else ["sandbox"]), echo.ends
    told = paddock.wait_for(lambda: (t := echo.box.get())["end_cause"] and t, 60, "it is lost")
    assert told["end_cause"] == "lost" and told["end_reason"], told


@pytest.fixture(scope="module")
def landlord():
    with Landlord() as who:
        yield who


@pytest.fixture(scope="module")
def way(landlord):
    cutter = Cutter(landlord.port)
    yield cutter
    cutter.close()


@pytest.fixture(scope="module")
def server(landlord, way):
    v = tenant(landlord, f"https://127.0.0.1:{way.address[1]}")
    yield v
    v.close()
    landlord.await_none("no sandbox is left behind")


@pytest.fixture
def delay(way, request):
    way.delay = request.param / 2000
    yield request.param
    way.delay = 0


def far_ends(landlord):
    """The processes in sandboxes elsewhere that have the box's end of a link."""
    return [p for k in landlord.server.keepers() for p in host.descendants(k) if host.read_proc(p, "comm") == "paddock-link\n"]


def strike(server, landlord, way, victim):
    if victim == "far end":
        for pid in paddock.wait_for(lambda: far_ends(landlord), 20, "there is a far end"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    elif victim in ("safe", "all"):
        server.note_instances()
        if victim == "all":
            server.kill("daemon")
        strike_near(server, "e2b", "keeper", way.cut)
        for pid in [p for p in host.pids() if host.read_proc(p, "comm") == "paddock-safe\n"
                    and server.directory in " ".join(host.command_line(p))]:
            os.kill(pid, signal.SIGKILL)
        if victim == "all":
            server.restart()
    elif victim == "both":
        server.note_instances()
        server.kill("daemon")
        strike_near(server, "e2b", "keeper", way.cut)
        server.restart()
    else:
        strike_near(server, "e2b", victim, way.cut)


# By day each victim once, with one of the delays.
SHARE = -(-KILLS // len(DELAYS_MS)) or 1
CALM = DELAYS_MS if KILLS else DELAYS_MS[1:2]
FATAL = ([(victim, ms) for victim in DEADLY for ms in DELAYS_MS] if KILLS else
         list(zip(DEADLY, (0, 100, 20, 0))))


@pytest.mark.parametrize("delay", CALM, indirect=True)
def test_every_byte_both_ways_and_every_end_once(server, landlord, way, delay):
    left = dict.fromkeys(HARMLESS, SHARE)
    boxes, number = [make_box(server, "e2b") for _ in range(2)], 0
    while any(left.values()):
        number += 1
        victims = [v for v in HARMLESS for _ in range(min(3, left[v]))]
        random.shuffle(victims)
        print(f"{delay} ms, round {number}: {victims}", flush=True)
        echoes = [Echo(b, f"run{number}x{n}x{delay}") for n, b in enumerate(boxes)]
        for victim in victims:
            time.sleep(random.uniform(0, 0.2))
            strike(server, landlord, way, victim)
            left[victim] -= 1
        for echo in echoes:
            echo.go_on()
            check_whole(echo.end())
    assert len(landlord.rented()) == len(boxes)
    for b in boxes:
        b.delete()
    landlord.await_none("what was deleted is ended")


@pytest.mark.parametrize("victim, delay", FATAL, indirect=["delay"])
def test_what_takes_a_sandbox_along_is_told_once(server, landlord, way, delay, victim):
    left, number = SHARE, 0
    while left > 0:
        number += 1
        size = DEADLY[victim] if KILLS else 1
        makers = [Later(make_box, server, "e2b") for _ in range(size)]
        boxes = [m.end(120).value for m in makers]
        assert all(boxes), [m.error for m in makers]
        echoes = [Echo(b, f"cut{number}x{n}x{delay}") for n, b in enumerate(boxes)]
        paddock.wait_for(lambda e=echoes: all(one.began for one in e), 60, "they run")
        time.sleep(random.uniform(0, 0.2))
        print(f"{delay} ms, round {number}: {victim} of {size} sandboxes", flush=True)
        strike(server, landlord, way, victim)
        left -= size if victim in ("guard", "far end") else 1
        for echo in echoes:
            check_cut_off(echo.end())
        landlord.await_none("its sandbox elsewhere is ended", 60)
