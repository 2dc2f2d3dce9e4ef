"""A gate that was taken over, at a server with sandboxes: it does what it is told (paddock_testing/taken.py), and gets
nothing but connections. Each thing is done by an ordinary process of root's as well, where it must work."""

import errno
import os
import subprocess

import pytest
from paddock_testing import host
from paddock_testing.internet import ServerInside
from paddock_testing.run import wait_for
from paddock_testing.taken import taken, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
PATH_ONLY = 0o10000000


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet) as s:
        yield s


@pytest.fixture(scope="module")
def ordinary():
    """A process of root's, and its descriptor of a network namespace."""
    with open("/proc/self/ns/net", "rb") as namespace:
        p = subprocess.Popen(["sleep", "3600"], pass_fds=(namespace.fileno(),))
        yield p.pid, namespace.fileno()
    p.kill()
    p.wait()


def attempts(server, jail, namespace):
    """What is tried, by name: the call, and its arguments. A result that is not below 0 has worked."""
    daemon = server.daemon()

    def in_state(ending):
        return next(os.path.join(top, n) for top, _, names in os.walk(server.state_dir) for n in names if n.endswith(ending))

    return {
        "the database": ("open", in_state(".db").encode(), 0),
        "the key of secrets": ("open", in_state("secrets.key").encode(), 0),
        "a file of the machine": ("open", b"/etc/passwd", 0),
        "by openat": ("openat", -100, b"/etc/passwd", 0, 0),
        "a root of a sandbox": ("open", f"/proc/{jail}/root".encode(), PATH_ONLY),
        "memory of the server": ("open", f"/proc/{daemon}/mem".encode(), 0),
        "a working directory": ("chdir", b"/"),
        "a socket of the machine": ("socket", 1, 5, 0),
        "netlink": ("socket", 16, 3, 0),
        "packets": ("socket", 17, 3, 0),
        "another network": ("setns", namespace, CLONE_NEWNET),
        "new mounts": ("unshare", CLONE_NEWNS),
        "root": ("setuid", 0),
        "a signal": ("kill", daemon, 0),
        "a process by descriptor": ("pidfd_open", daemon, 0),
    }


def test_a_gate_that_was_taken_over_gets_nothing(server, ordinary):
    client = server.client()
    made = client.post("/v1/sandboxes", json={"network": {"allow": ["a.example"]}})
    assert made.status == 201, made
    sandbox = made.json()["id"]
    (gate,) = wait_for(server.gates, 30, "there is a gate")
    jail = next(p for p in host.descendants(server.keepers()[0]) if host.is_jail_init(p))
    other, namespace = ordinary
    tried = attempts(server, jail, namespace)

    with taken(gate) as call:
        # It does what it is told: what a gate lives by, it can.
        for family in (2, 10):
            made = call("socket", family, 1, 0)
            assert made >= 0 and call("close", made) == 0
        got = {name: call(*what) for name, what in tried.items()}
    assert got == {name: -errno.EPERM for name in tried}

    with taken(other) as call:
        worked = {name: call(*what) for name, what in tried.items()}
    assert all(result >= 0 for result in worked.values()), worked

    # And it goes on as if nothing had been.
    line = "curl -sSf -m 60 http://a.example/"
    done = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line]}).json()
    assert done["exit_code"] == 0, done
    assert server.gates() == [gate]
    client.delete(f"/v1/sandboxes/{sandbox}")
