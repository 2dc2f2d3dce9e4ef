"""The process that waits to become the next command (init/runner.c): nothing in its sandbox reaches it, though it
has no program of its own yet, and it is not counted."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from .server_kit import server, tenant  # noqa: F401  (a fixture)

REACH = Path(__file__).with_name("reach.py")
STRANGER = 62003


@pytest.fixture
def box(server):  # noqa: F811
    yield from tenant(server, "runner")


def run(client, *argv):
    """Without a shell: one would be started for the next line, and while it waits nothing else does."""
    answer = client.post(f"/v1/sandboxes/{client.sandbox}/exec", json={"argv": argv})
    assert answer.status == 200, answer
    return answer.json()


def test_what_goes_on_in_a_sandbox_does_not_reach_the_process_that_waits(box):
    """A process that a command has left behind tries, while no command runs."""
    where = f"/v1/sandboxes/{box.sandbox}/files?path=/tmp/reach.py"
    assert box.put(where, data=REACH.read_bytes()).status < 300
    run(box, "sh", "-c", "setsid python3 /tmp/reach.py waiting /tmp/reached >/tmp/reach.log 2>&1 </dev/null &")

    # Each command that ends is followed by a process that waits.
    paddock.wait_for(lambda: run(box, "test", "-e", "/tmp/reached")["exit_code"] == 0, 60, "it was tried")
    reached = json.loads(run(box, "cat", "/tmp/reached")["stdout"])
    print(reached)
    assert reached, f"none has waited: {run(box, 'cat', '/tmp/reach.log')}"
    assert not [way for way, how in reached.items() if how == "worked"], reached


def test_its_user_would_reach_it():
    """The control, outside: each of these ways works against a process of one's own."""
    become = {"user": STRANGER, "group": STRANGER, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="paddock-reach-") as place, open(REACH, "rb") as script:
        os.chmod(place, 0o777)
        subprocess.run([sys.executable, "-", "own", f"{place}/reached"], stdin=script, cwd=place, check=True,
                       timeout=100, **become)
        reached = json.loads(Path(place, "reached").read_text())
    assert set(reached.values()) == {"worked"}, reached


def test_metrics_do_not_count_it(box):
    """The kernel does."""
    started = box.post(f"/v1/sandboxes/{box.sandbox}/processes", json={"argv": ["sleep", "32167"]})
    assert started.status == 201, started
    inits = paddock.wait_for(lambda: {host.jail_init(p) for p in host.with_word("32167")}, 20, "it runs")
    init, = inits

    def ids(pid):
        return host.status(pid).get("Uid")

    def waiting():
        """Alone with init: the kernel's number of processes there."""
        children = host.read_proc(init, f"task/{init}/children").split()
        return len(children) if all(ids(p) == ids(init) for p in children) else 0

    assert box.post(f"/v1/sandboxes/{box.sandbox}/processes/{started.json()['process_id']}/signal",
                    json={"signal": "KILL"}).status < 300
    for _ in range(20):
        run(box, "true")
        paddock.wait_for(waiting, 20, "a process waits")
        assert box.get(f"/v1/sandboxes/{box.sandbox}/metrics").json()["pids"] == 1
        assert waiting() == 1, "the control: it waited all the time"
