"""A server whose processes are all killed at once and that is never started again: no box of it stays alive for longer
than a lease and a minute. Boxes elsewhere wait for their keeper, whom nobody starts, until their lease is over; boxes on
this machine end with their keeper at once.

The doubles of rented sandboxes and of tasks have the same test in their own files (test_e2b.py, test_fargate.py)."""

import contextlib
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

from paddock_testing import contract, engine_double, host, kube
from paddock_testing import run as paddock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))
from breaking import Box, Victim  # pylint: disable=wrong-import-position

LEASE_S = 10  # the least
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: boxes are real namespaces")


@contextlib.contextmanager
def docker(request):
    double = engine_double.EngineDouble()
    try:
        yield {"docker_host": double.host}, {"image": engine_double.IMAGE}, lambda: [c for c in double.there.values() if c.runs()]
    finally:
        double.close()


@contextlib.contextmanager
def far_docker(request):
    far, images = request.getfixturevalue("far"), request.getfixturevalue("far_images")
    yield far.settings(), {"image": images["sh"]}, lambda: [c for c in far.containers() if c["State"] == "running"]


@contextlib.contextmanager
def kubernetes(request):
    if reason := kube.why_not():
        pytest.skip(f"no pods here: {reason}")
    double = kube.Double()
    try:
        yield kube.settings(double.config), {"image": "debian:12"}, lambda: [p for p in double.processes.values() if p.runs()]
    finally:
        double.close()


@contextlib.contextmanager
def local(request):
    yield {"local_allowed": "on"}, {}, None


@contextlib.contextmanager
def toy(request):
    if reason := contract.toy_why_not():
        pytest.skip(f"no toy here: {reason}")
    yield {"backends": f"toy={contract.toy()}"}, {}, None


@contextlib.contextmanager
def jail(request):
    yield {}, {}, None


KINDS = {"docker far away": far_docker, "kubernetes": kubernetes, "docker": docker, "local": local, "toy": toy, "jail": jail}
ELSEWHERE = ("docker far away", "kubernetes")
# By day those that wait: that the others end with their keeper is tried in their own files, and what a dead keeper has left
# is removed when it is ten seconds old.
BY_DAY = KINDS if paddock.NIGHTLY else ELSEWHERE


def processes_of(server):
    """All of the server's own: of its boxes none has its directories on its command line but local ones, by their init."""
    return [p for p in host.pids() if any(server.directory in word for word in host.command_line(p))
            and host.read_proc(p, "comm").strip() != "init"]


def kill_everything(server):
    """At once: nobody of them sees another one's end."""
    server.note_instances()
    server.expect_end()
    pids = processes_of(server)
    assert server.process.pid in pids and len(pids) >= 3, pids
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    server.process.wait(paddock.seconds(10))


@pytest.mark.parametrize("kind", BY_DAY)
def test_a_server_that_is_gone_for_good_costs_a_lease_at_most(request, kind):
    word = f"10{secrets.randbelow(10**9):09d}"
    with KINDS[kind](request) as (settings, body, alive):
        provider = kind.split(" ", maxsplit=1)[0]
        server = Victim({"providers": provider if provider == "jail" else f"jail,{provider}", "image_pull": "never",
                         "box_lease_s": LEASE_S, **settings})
        server.__enter__()
        try:
            box = Box(server.client(), provider=provider, **body)
            started = box.api.post(f"{box.url}/processes", json={"argv": ["sleep", word]})
            assert started.status == 201, started
            paddock.wait_for(lambda: runs(word), 20, "its command runs")
            kill_everything(server)
            if kind in ELSEWHERE:
                assert runs(word) and alive(), "the control: it is not the server's end that ends it"
            paddock.wait_for(lambda: not runs(word), LEASE_S + 60, "its command has ended")
            if alive:
                paddock.wait_for(lambda: not alive(), LEASE_S + 60, "and its box")
            # What is left of it on disk and in the engine is the next server's to remove.
            server.start()
        finally:
            server.close()


def runs(word):
    return [p for p in host.pids() if host.command_line(p) == ["sleep", word] and not host.is_zombie(p)]
