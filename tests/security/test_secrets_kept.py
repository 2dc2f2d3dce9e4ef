"""Where a secret could be left behind: dumps of memory, snapshots and what is made from them."""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from paddock_testing.host import files_with
from paddock_testing.internet import ServerInside
from paddock_testing.run import PADDOCK, seconds, wait_for

VALUE = "sesame-4711-kept"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()
NETWORK = {"allow": ["a.example"], "secrets": [{"env": "API_KEY", "secret": "prod", "hosts": ["a.example"]}]}
GET = f'curl -sS -m {int(seconds(15))} -H "X-Key: $API_KEY" https://a.example/%s'


@pytest.fixture(scope="module")
def server(internet):
    with ServerInside(internet, {"egress_ca": f"{internet.dir}/cert"}) as s:
        assert s.client().put("/v1/secrets/prod", json={"value": VALUE}).status == 200
        yield s


def create(client, **body):
    r = client.post("/v1/sandboxes", json=body)
    assert r.status == 201, r
    return r.json()["id"]


def run(client, sandbox, line, user="user"):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", line], "user": user})
    assert r.status == 200, r
    text = r.json()["stdout"] + r.json()["stderr"]
    assert VALUE not in text and "4711" not in text, text
    return text


# Uses the secret, and then has all of its memory written to a file: by the kernel, and by a debugger where there is one.
DUMP = """cd /tmp; ulimit -c unlimited 2>/dev/null
cat > use.py <<'E'
import os, signal, urllib.request
r = urllib.request.Request("https://a.example/echo", headers={"X-Key": os.environ["API_KEY"]})
body = urllib.request.urlopen(r).read()
print("echoed", b"*" * 16 in body, flush=True)
os.system("gcore -o dump %d >/dev/null 2>&1" % os.getpid())
os.abort()
E
/usr/bin/python3 use.py
for f in core* dump*; do
    [ -f "$f" ] && echo "dump: $(grep -c pdk-secret- "$f") $(grep -c 4711'-kept' "$f")"
done
echo done"""


@pytest.mark.parametrize("user", ["user", "root"])
def test_a_dump_of_whoever_used_it_has_the_placeholder(server, user):
    client = server.client()
    s = create(client, network=NETWORK)
    text = run(client, s, DUMP, user)
    assert "echoed True" in text and "done\n" in text, text
    for found in re.findall(r"dump: (\d+) (\d+)", text):  # the kernel writes none, a debugger may
        assert int(found[0]) > 0 and int(found[1]) == 0, text
    client.delete(f"/v1/sandboxes/{s}")


def test_the_changer_leaves_no_core(server, tmp_path):
    """One of our own, whose end is told to us; the control is a process that is ended in the same way and place."""
    if Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("core dumps of this machine go to a program")
    place = tmp_path / "place"
    place.mkdir(mode=0o777)
    place.chmod(0o777)

    def dumped(argv, until):
        p = subprocess.Popen(["prlimit", "--core=unlimited", *argv], cwd=place, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until(p)
            os.kill(p.pid, signal.SIGABRT)
            _, status = os.waitpid(p.pid, 0)
        finally:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                p.kill()
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT, status
        return os.WCOREDUMP(status) or any(place.iterdir())

    def is_nobody(p):
        wait_for(lambda: "Seccomp:\t2" in Path(f"/proc/{p.pid}/status").read_text(), 30, "it has given up its power")

    gate = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gate.bind(str(tmp_path / "gate"))
    gate.listen(1)
    key = next(os.path.join(d, n) for d, _, names in os.walk(server.state_dir) for n in names if n == "secrets.key")
    shutil.copy(key, tmp_path / "key")
    argv = [os.path.join(os.path.dirname(PADDOCK), "paddockd"), "changer", "--gate", str(tmp_path / "gate"), "--lock",
            str(tmp_path / "lock"), "--key", str(tmp_path / "key")]
    assert not dumped(argv, is_nobody)
    assert dumped(["sleep", "600"], lambda p: wait_for(
        lambda: Path(f"/proc/{p.pid}/comm").read_text() == "sleep\n", 30, "it sleeps"))


def test_snapshots_and_what_is_made_from_them_have_none(server):
    """Files of a sandbox that used it, kept as a snapshot: nothing of the value, and nothing that could use it."""
    client = server.client()
    s = create(client, network=NETWORK)
    assert DIGEST in run(client, s, GET % "key")
    run(client, s, GET % "echo" + ' > ~/answer; env > ~/environment; cp /etc/paddock/authorities.pem ~/; sync')
    status, made = server.e2b("POST", f"/sandboxes/{s}/snapshots", {"name": "used"})
    assert status == 201, made
    assert not files_with(server.state_dir, VALUE.encode())
    placeholder = run(client, s, "echo $API_KEY").strip()
    assert files_with(server.state_dir, placeholder.encode())  # the control: what is kept is found

    # One that is made from it has what its own request says: a way out or none, and no secret.
    line = f"API_KEY={placeholder}; " + GET % "key"

    def make(**body):
        status, told = server.e2b("POST", "/v2/sandboxes", {"templateID": made["snapshotID"], **body})
        assert status == 201, told
        return told["sandboxID"]

    closed, opened = make(allow_internet_access=False), make()
    assert DIGEST not in run(client, closed, line)
    text = run(client, opened, line.replace("curl", "curl -k"))
    assert hashlib.sha256(placeholder.encode()).hexdigest() in text and DIGEST not in text
    assert "*" * len(VALUE) in run(client, opened, "cat ~/answer")
    # Given the secret anew it uses it, with an authority of its own.
    assert client.put(f"/v1/sandboxes/{opened}/network", json=NETWORK).status == 200
    assert DIGEST in run(client, opened, GET % "key")
    for each in (s, closed, opened):
        client.delete(f"/v1/sandboxes/{each}")
    assert server.e2b("DELETE", f"/templates/{made['snapshotID']}")[0] == 204
