"""How far file calls of the E2B door reach: in profile dev, where the user may become root at any
time, as far as root does, and what they make is the user's; in profile strict as far as the user."""

import pytest

from e2b_rpc import Rpc
from paddock_testing.e2b_http import E2b

SERVICE = "filesystem.Filesystem"


@pytest.fixture(scope="module")
def e2b(server):
    return E2b(server)


class Place:
    def __init__(self, server, e2b, template):
        self.made = e2b.post("/v2/sandboxes", {"templateID": template, "timeout": 3600}).json()
        self.id = self.made["sandboxID"]
        self.e2b = e2b
        self.rpc = Rpc(server.client(), self.id, self.made["envdAccessToken"])

    def call(self, method, **body):
        return self.rpc.unary(method, body, service=SERVICE)

    def files(self, method, path, data=None):
        headers = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49983",
                   "X-Access-Token": self.made["envdAccessToken"],
                   "Content-Type": "application/octet-stream"}
        return self.e2b.request(method, f"/files?path={path}", data=data, headers=headers, key=False)

    def sh(self, command, user="root"):
        return self.e2b.run(self.id, command, user=user)


@pytest.fixture(scope="module")
def places(server, e2b):
    made = {name: Place(server, e2b, name) for name in ("base", "default")}
    yield made
    for place in made.values():
        e2b.delete(f"/sandboxes/{place.id}")


OPERATIONS = {
    "make a directory": lambda p: p.call("MakeDir", path="/etc/deep/er").status,
    "write": lambda p: p.files("POST", "/etc/below/file", b"new").status,
    "overwrite": lambda p: p.files("POST", "/etc/group", b"new").status,
    "move": lambda p: p.call("Move", source="/etc/passwd", destination="/etc/moved").status,
    "remove": lambda p: p.call("Remove", path="/etc/group").status,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_root_places_are_reached_in_dev_alone(places, operation):
    assert OPERATIONS[operation](places["base"]) == 200
    assert OPERATIONS[operation](places["default"]) == 403  # the control: the wall is there


def test_what_is_made_is_the_users(places):
    base = places["base"]
    assert base.call("MakeDir", path="/var/lib/one/two").status == 200
    assert base.files("POST", "/var/lib/one/three/f", b"x").status == 200
    owners = base.sh("stat -c '%u %g' /var/lib/one /var/lib/one/two /var/lib/one/three "
                     "/var/lib/one/three/f")
    assert owners.split("\n")[:4] == ["1000 1000"] * 4


def test_private_files_are_read(places):
    for place in places.values():
        place.sh("mkdir -p /tmp/r; echo secret >/tmp/r/s; chmod 700 /tmp/r; chmod 600 /tmp/r/s")
    assert places["base"].files("GET", "/tmp/r/s").body == b"secret\n"
    assert places["default"].files("GET", "/tmp/r/s").status == 403
    assert places["base"].call("ListDir", path="/tmp/r").json()["entries"][0]["name"] == "s"
    assert places["default"].call("ListDir", path="/tmp/r").status == 403


def test_it_ends_at_the_walls_of_the_sandbox(places):
    """Root of the sandbox is nobody outside: what is mounted from the host stays as it is."""
    base = places["base"]
    for path in ("/usr/bin/new", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger"):
        assert base.files("POST", path, b"x").status in (400, 403), path
    assert base.call("Remove", path="/usr/bin/env").status in (400, 403)
    assert base.call("Stat", path="/usr/bin/env").status == 200


def test_no_call_runs_with_more_than_the_seven_capabilities(places):
    """A worker that watches lives long enough to be looked at from inside."""
    base = places["base"]
    stream = base.rpc.stream("WatchDir", {"path": "/root"}, service=SERVICE)
    try:
        seen = base.sh("grep -h '^CapEff\\|^CapBnd' /proc/[0-9]*/status | sort -u")
    finally:
        stream.close()
    allowed = 0b1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7
    for line in seen.strip().split("\n"):
        assert int(line.split()[1], 16) & ~allowed == 0, seen
