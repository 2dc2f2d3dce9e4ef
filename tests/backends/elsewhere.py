"""What the tests of backends on other machines have in common: a sandbox there, whoever stands for it here, counts that are at
rest, and `paddock backend check`'s program."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.credentials import processes_of
from paddock_testing.server import check_error
from kept_files import keeper_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))
from breaking import Box, Later  # pylint: disable=wrong-import-position

COMMS = {"carrier": "paddock-carrier", "stand-in": "paddock-standin", "guard": "paddock-guard", "watch": "paddock-far", "switchboard": "paddock-calls"}


def open_soon(server):
    """Who is refused often would open the breaker: that is tested elsewhere."""
    admin = server.client(server.run("key", "create", "--admin", "--tenant", "ops").stdout.strip())
    answer = admin.put("/v1/router", json={"breaker": {"open_s": 1, "open_max_s": 1}})
    assert answer.status == 200, answer


def make_box(server, provider):
    """A sandbox; while a keeper is replaced that is refused, with the advice to try again."""
    api = server.client()

    def made():
        answer = api.post("/v1/sandboxes", json={"provider": provider})
        if answer.status == 201:
            return Box(api, answer.json()["id"])
        check_error(answer, 503, ["capacity", "lost"])
        return None
    return paddock.wait_for(made, 60, "a sandbox can be made")


def at_rest(api, provider, live):
    """How many boxes `live()` tells, when there are as many as sandboxes: those that were deleted end a little later."""
    def count():
        return sum(1 for s in api.get("/v1/sandboxes").json()["sandboxes"] if s["provider"] == provider)

    paddock.wait_for(lambda: len(live()) == count(), 60, "there are as many boxes as sandboxes")
    return len(live())


def named(server, victim):
    """Those of the server's processes that are this. One whose broker was killed is nobody's child."""
    return [pid for pid, comm in processes_of(server).items() if comm == COMMS[victim]]


def brokers(keeper):
    return [p for p in host.descendants(keeper) if "broker" in host.command_line(p)]


def strike(server, provider, victim, cut):
    """Kills what is between a command and its client, or cuts its connections."""
    server.note_instances()
    if victim == "cut":
        cut()
    elif victim == "daemon":
        server.kill("daemon")
        server.restart()
    else:
        keeper = keeper_of(server, provider)
        pids = {"keeper": [keeper], "broker": brokers(keeper)}
        kill(pids[victim] if victim in pids else named(server, victim))


def kill(pids, number=signal.SIGKILL):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_everybody(server):
    """All processes of a server at once: nobody of them sees another one's end, and none can clean up."""
    server.note_instances()
    server.expect_end()
    pids = processes_of(server)
    assert server.process.pid in pids and len(pids) > 5, pids
    for number in (signal.SIGSTOP, signal.SIGKILL):
        kill(pids, number)
    server.process.wait(paddock.seconds(10))


def check(provider, settings, env=None, image=None, lease=30):
    """What the program of a check says of these settings (NAME_WORD) in this environment: its status, and its lines."""
    words = [word for name, value in settings.items() if name.startswith(f"{provider}_")
             for word in ("--set", f"{name.removeprefix(provider + '_')}={value}")]
    program = os.path.join(os.path.dirname(paddock.PADDOCK), "paddock-remote")
    done = subprocess.run([program, "check", provider, "--lease", str(lease), *words, *([image] if image is not None else [])],
                          capture_output=True, text=True, check=False, timeout=paddock.seconds(60),
                          env=paddock.clean_environment(env or {}))
    return done.returncode, done.stdout


__all__ = ["Box", "COMMS", "Later", "at_rest", "check", "kill", "kill_everybody", "make_box", "named", "open_soon", "strike"]
