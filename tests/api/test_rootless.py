"""The server for a user without privilege: the same, with what is possible then, and it says so."""

import contextlib
import os
import signal
import subprocess

import pytest

from paddock_testing import host
from paddock_testing.server import Server, check_error

UID = 54321  # nobody's


class Rootless(Server):
    def __init__(self):
        super().__init__(settings={"pool_min": 1, "pool_max": 1, "egress": "list"})
        os.chown(self.directory, UID, UID)

    def argv(self):
        return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *super().argv()]


@pytest.fixture(scope="module")
def rootless():
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    probe = subprocess.run(["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups",
                            "unshare", "--user", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no user namespaces for users here")
    s = Rootless().start()
    yield s
    s.close()


def test_a_sandbox_works_and_says_how_strong_it_is(rootless):
    api = rootless.client()
    sandbox = api.post("/v1/sandboxes", json={}).json()
    assert sandbox["isolation"] == "basic"
    path = f"/v1/sandboxes/{sandbox['id']}"
    done = api.post(path + "/exec", json={"command": "id -u; echo x > f; export A=b"}).json()
    assert (done["stdout"], done["exit_code"], done["state"]) == ("1000\n", 0, "updated")
    assert api.get(path + "/files?path=/workspace/f").body == b"x\n"
    late = api.post(path + "/exec", json={"command": "sleep 60", "timeout_s": 0.3}).json()
    assert late["timed_out"] and late["stopped_by"] == "timeout"
    check_error(api.post(path + "/pause"), 501, "unsupported", says="cgroups")
    assert api.delete(path).status == 204


def test_sandboxes_survive_a_kill(rootless):
    api = rootless.client()
    sandbox = api.post("/v1/sandboxes", json={}).json()["id"]
    path = f"/v1/sandboxes/{sandbox}"
    assert api.post(path + "/exec", json={"command": "cd /tmp; export A=b"}).status == 200
    api.close()
    rootless.send_signal(signal.SIGKILL)
    rootless.wait()
    rootless.start()
    done = api.post(path + "/exec", json={"command": "echo $PWD $A"}).json()
    assert done.get("stdout") == "/tmp b\n", (done, rootless.log())
    assert api.delete(path).status == 204


def test_nothing_of_it_runs_as_root(rootless):
    for pid in [rootless.process.pid, rootless.daemon(), *rootless.keepers()]:
        with contextlib.suppress(FileNotFoundError):  # a builder that has done its work
            assert os.stat(f"/proc/{pid}").st_uid in (UID, 0)  # what is not dumpable looks like root's
            assert host.uids(pid) in ([], [UID] * 4)
    assert host.uids(rootless.daemon()) == [UID] * 4


def test_a_way_out_is_for_those_that_are_made_with_one(rootless):
    api = rootless.client()
    rules = {"allow": ["nothing.invalid"]}
    made = api.post("/v1/sandboxes", json={"network": rules})
    assert made.status == 201, made
    without = api.post("/v1/sandboxes", json={}).json()["id"]
    assert api.put(f"/v1/sandboxes/{made.json()['id']}/network", json=rules).status == 200
    check_error(api.put(f"/v1/sandboxes/{without}/network", json=rules), 501, "unsupported", says="without root")
    told = api.post(f"/v1/sandboxes/{without}/exec", json={"argv": ["bash", "-c", "exec 3<>/dev/tcp/203.0.113.7/80"]}).json()
    assert told["exit_code"] != 0 and "unreachable" in told["stderr"]
    assert api.get(f"/v1/sandboxes/{without}/network").json()["mode"] == "off"
    for sandbox in (made.json()["id"], without):
        assert api.delete(f"/v1/sandboxes/{sandbox}").status == 204
