"""Provider local: what it says of itself, who its commands are, and what becomes of them when the
server or its keeper is killed. What it has in common with a jail is in tests/api: test_contract."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.run import wait_for
from paddock_testing.server import Client, Server, check_error, free_port

SETTINGS = {"providers": "jail,local", "local_allowed": "on", "requests_per_s": 0,
            "creates_per_s": 0}
# A line every 2 ms, each told once and in order.
COUNTER = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.002; done"


@pytest.fixture(scope="module")
def server():
    with Server(SETTINGS) as s:
        yield s


@pytest.fixture
def api(server):
    client = server.client()
    yield client
    client.close()


class Box:
    def __init__(self, api):
        answer = api.post("/v1/sandboxes", json={"provider": "local"})
        assert answer.status == 201, answer
        self.api = api
        self.made = answer.json()
        self.base = f"/v1/sandboxes/{self.made['id']}"

    def out(self, command):
        answer = self.api.post(f"{self.base}/exec", json={"command": command})
        assert answer.status == 200 and answer.json()["exit_code"] == 0, answer
        return answer.json()["stdout"]

    def start(self, command):
        answer = self.api.post(f"{self.base}/processes", json={"command": command})
        assert answer.status == 201, answer
        return answer.json()["process_id"]

    def output(self, process):
        answer = self.api.get(f"{self.base}/processes/{process}/output")
        assert answer.status == 200, answer
        return answer.text

    def wait_for_lines(self, process, count):
        wait_for(lambda: self.output(process).count("\n") >= count, 60, f"{count} lines")


@pytest.fixture
def box(api):
    b = Box(api)
    yield b
    api.delete(b.base)


def test_it_says_that_nothing_is_isolated(server, api, box):
    told = {p["name"]: p for p in api.get("/v1/providers").json()["providers"]}
    assert told["local"]["isolation"] == "none" and told["local"]["healthy"]
    assert told["jail"]["isolation"] != "none" and told["jail"]["default"]
    assert not {"snapshot", "sleep", "roots", "image"} & set(told["local"]["capabilities"])
    assert box.made["provider"] == "local" and box.made["isolation"] == "none"
    assert box.made["reason"] == "asked for by the request"
    assert "server.provider name=local isolation=none" in server.log()


def test_it_is_refused_unless_it_is_allowed():
    s = Server({"providers": "jail,local"})
    done = subprocess.run(s.argv(), env=s.env, capture_output=True, text=True,
                          timeout=paddock.seconds(30))
    s.remove()
    assert done.returncode != 0 and "set local_allowed = true" in done.stderr, done


def test_a_provider_that_there_is_not_is_answered_with_those_that_there_are(api):
    error = check_error(api.post("/v1/sandboxes", json={"provider": "nowhere"}), 400, "invalid",
                        field="provider")
    assert "jail" in error["message"] and "local" in error["message"]


def test_what_it_cannot_give_is_refused(api, box):
    check_error(api.post("/v1/sandboxes", json={"provider": "local", "profile": "restricted"}),
                501, "unsupported", says="local")
    check_error(api.post("/v1/sandboxes", json={"provider": "local", "image": "debian:12"}),
                501, "unsupported", says="provider local cannot make a sandbox from an image")
    check_error(api.post(f"{box.base}/exec", json={"argv": ["id"], "user": "root"}),
                501, "unsupported", says="provider local has no root")


def test_commands_have_a_directory_and_no_privilege(api, box):
    place = box.out("pwd").strip()
    assert box.out("echo $HOME").strip() == place
    capabilities = box.out("grep -h ^Cap /proc/self/status").split()[1::2]
    assert {int(c, 16) for c in capabilities[1:3]} == {0}, capabilities
    if os.geteuid() == 0:
        assert int(box.out("id -u")) >= 1 << 30
        other = Box(api)
        assert other.out("id -u") != box.out("id -u")
        api.delete(other.base)
    assert api.put(f"{box.base}/files?path=/workspace/f", data=b"text").status == 201
    assert box.out("cat f") == "text" and Path(place, "f").is_file()
    assert box.made["id"] and "HOME" not in api.get(f"{box.base}/env").json()["env"]


def test_it_has_neither_the_keepers_session_nor_its_score_for_lack_of_memory(box):
    """The keeper is protected, and may have been started at root's terminal."""
    line = "echo $PPID; ps -o sid= -p $PPID; cat /proc/$PPID/oom_score_adj"
    init, session, score = box.out(line).split()
    assert (init, score) == (session, "500")
    if int(host.status(os.getpid())["CapEff"], 16) >> 24 & 1:  # CAP_SYS_RESOURCE
        assert box.out("echo 0 2>/dev/null >/proc/self/oom_score_adj || echo refused") == "refused\n"


def test_nothing_is_left_of_one_that_was_deleted(api):
    box = Box(api)
    place = Path(box.out("pwd").strip())
    box.start("setsid sleep 3600 & (trap '' TERM HUP; exec sleep 3601) & sleep 3602")
    uid = box.out("id -u").strip()
    wait_for(lambda: box.out("pgrep -c -u $(id -u) sleep || true").strip() == "3", 30, "three sleepers")
    assert api.delete(box.base).status == 204
    # Dead at once; whose children they are now reaps them a moment later.
    wait_for(lambda: subprocess.run(["pgrep", "-u", uid, "sleep"]).returncode == 1, 30, "they are gone")
    wait_for(lambda: not place.exists(), 30, "its directory is removed")


# Kills everything else of its user, init as well, for ever.
KILLER = "import os, signal\nwhile True:\n    try: os.kill(-1, signal.SIGKILL)\n    except OSError: pass"


@pytest.mark.skipif(os.geteuid() != 0, reason="without root a sandbox has no uid of its own")
def test_a_process_that_kills_its_killers_is_ended_with_its_sandbox(api):
    for _ in range(3):
        box = Box(api)
        place = Path(box.out("pwd").strip())
        uid = box.out("id -u").strip()
        api.post(f"{box.base}/processes", json={"argv": ["/usr/bin/python3", "-c", KILLER]})
        wait_for(lambda: api.get(box.base).json()["state"] == "gone", 60, "init is killed")
        api.delete(box.base)
        wait_for(lambda: not place.exists(), 60, "its directory is removed")
        wait_for(lambda: subprocess.run(["pgrep", "-u", uid]).returncode == 1, 60, "nothing of it is left")


def test_a_keeper_without_root_sweeps_its_own_directory_only():
    """Named roots are beside it, which nobody has locked either."""
    top = Path(f"/tmp/paddock-local-{os.getpid()}")
    state = top / "state"
    named = state / "roots" / "mine" / "tree" / "file"
    dead = state / "boxes" / "0123456789abcdef" / "j1" / "file"
    for file in (named, dead):
        file.parent.mkdir(parents=True)
        file.write_text("text")
    shutil.copy(paddock.PADDOCK, top / "paddock")
    user = 1000 if os.geteuid() == 0 else None
    if user:
        for path in (top, *top.rglob("*")):
            os.chown(path, user, user)
    env = {**os.environ, "PADDOCK_STATE_DIR": str(state), "PADDOCK_RUN_DIR": str(top / "run")}
    keeper = subprocess.Popen([top / "paddock", "keeper", "--kind", "local", "--socket", top / "s"],
                              user=user, group=user, extra_groups=[] if user else None, env=env)
    try:
        wait_for(lambda: not dead.parent.parent.exists(), 60, "what a dead one left is removed")
        wait_for((top / "s").exists, 60, "it listens")
        keeper.terminate()
        assert keeper.wait(paddock.seconds(60)) == 0
        assert named.read_text() == "text" and not any((state / "boxes").iterdir())
    finally:
        keeper.kill()
        keeper.wait()
        shutil.rmtree(top)


def test_a_fork_of_a_context_ends_with_its_deletion_without_cgroups():
    """A server without privilege has no group in which to find it: its worker has left a guard."""
    top = Path(f"/tmp/paddock-forks-{os.getpid()}")
    top.mkdir()
    for name in ("paddock", "paddockd"):
        shutil.copy(Path(paddock.PADDOCK).parent / name, top / name)
    user = 1000 if os.geteuid() == 0 else None
    if user:
        for path in (top, *top.rglob("*")):
            os.chown(path, user, user)
    port, key = free_port(), "e2b_" + "5" * 40
    env = {"PATH": os.environ["PATH"], "HOME": str(top), "PADDOCK_API_KEY": key}
    with open(top / "log", "wb") as log:
        server = subprocess.Popen(
            [top / "paddock", "serve", "--listen", f"127.0.0.1:{port}", "--state-dir", top / "state", "--run-dir", top / "run",
             "--providers", "local", "--local-allowed", "on"],
            user=user, group=user, extra_groups=[] if user else None, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: b"server.start" in (top / "log").read_bytes() or server.poll() is not None, 60, "it starts")
        assert server.poll() is None, (top / "log").read_text()
        api = Client("127.0.0.1", port, key)
        box = Box(api)

        def value(code, context="python"):
            answer = api.post(f"{box.base}/contexts/{context}/execute", json={"code": code})
            assert answer.status == 200 and not answer.json()["error"], answer
            return int(answer.json()["results"][0]["text"])

        value("import os, subprocess; 0")
        fork = api.post(f"{box.base}/contexts/python/fork", json={}).json()["id"]
        pids = [value("os.getpid()", fork), value("subprocess.Popen(['sleep', '7654']).pid", fork)]
        assert all(is_alive(pid) for pid in pids)
        assert api.delete(f"{box.base}/contexts/{fork}").status == 204
        wait_for(lambda: not any(is_alive(pid) for pid in pids), 60, "the fork and its child are gone")
        assert value("1") == 1
        assert api.delete(box.base).status == 204
        api.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(paddock.seconds(60))
        shutil.rmtree(top)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("kind", ["jail", "local"])
def test_a_keeper_takes_no_options_that_it_would_ignore(kind):
    done = subprocess.run([paddock.PADDOCK, "keeper", "--socket", "/nowhere/s", "--kind", kind,
                           "--option", "host=unix:///nowhere"], capture_output=True, text=True,
                          timeout=paddock.seconds(30))
    assert done.returncode != 0 and f"--option 'host': kind {kind} takes none" in done.stderr, done


@pytest.mark.parametrize("round_number", range(2))
def test_a_killed_server_goes_on_with_it(server, api, box, round_number):
    counter = box.start(COUNTER)
    box.out("export COLOUR=green")
    box.wait_for_lines(counter, 20)
    server.kill()
    server.start()
    seen = box.output(counter).count("\n")
    box.wait_for_lines(counter, seen + 20)
    answer = api.post(f"{box.base}/processes/{counter}/signal", json={"signal": "KILL"})
    assert answer.status in (200, 204), answer
    wait_for(lambda: not api.get(f"{box.base}/processes/{counter}").json()["running"], 60, "its end")
    lines = box.output(counter).split()
    assert lines == [str(n) for n in range(1, len(lines) + 1)]
    assert box.out("echo $COLOUR") == "green\n"


def test_a_killed_keeper_takes_its_boxes_along_and_another_one_is_started(server, api):
    lost = Box(api)
    lost.start("sleep 3603")
    uid = lost.out("id -u").strip()
    jail = api.post("/v1/sandboxes").json()["id"]

    def only_keeper():
        keepers = [p for p in host.pids()
                   if f"{server.run_dir}/keeper-local.sock" in host.command_line(p)
                   and host.command_line(p)[1:2] == ["keeper"]]
        # Its sweeper has its command line, too, and removes the cgroups of a keeper that is gone.
        tops = [p for p in keepers if host.parent(p) not in (0, *keepers)]
        return tops if len(tops) == 1 else None

    os.kill(wait_for(only_keeper, 20, "one keeper")[0], signal.SIGKILL)

    def told():
        answer = api.get(lost.base)
        return answer.status == 200 and answer.json()["state"] == "gone"

    wait_for(told, 60, "the loss is told")
    assert api.get(lost.base).json()["end_cause"] == "lost"
    if os.geteuid() == 0:
        wait_for(lambda: subprocess.run(["pgrep", "-u", uid, "sleep"]).returncode == 1, 60,
                 "its command has ended with it")

    def made():
        return api.post("/v1/sandboxes", json={"provider": "local"}).status == 201

    wait_for(made, 60, "another keeper makes another one")
    assert api.get(f"/v1/sandboxes/{jail}").json()["state"] == "running"
    api.delete(f"/v1/sandboxes/{jail}")


@pytest.mark.parametrize("provider", ["jail", "local"])
def test_a_server_with_a_narrow_umask_makes_sandboxes(provider):
    before = os.umask(0o022)
    server = Server(SETTINGS)
    try:
        os.umask(0o077)
        server.start()
    finally:
        os.umask(before)
    try:
        api = server.client()
        answer = api.post("/v1/sandboxes", json={"provider": provider})
        assert answer.status == 201, answer
        done = api.post(f"/v1/sandboxes/{answer.json()['id']}/exec",
                        json={"command": "echo a > f; cat f; ls -d ."})
        assert done.status == 200 and done.json()["stdout"] == "a\n.\n", done
        api.close()
    finally:
        server.close()


TEMPLATE = """\
from = default
file = /workspace/deep/one
    of the workspace
file = /home/user/two
    of the home
file = ~/three
    of the home, too
"""


def test_files_of_a_template_are_written_where_the_sandbox_is():
    """And not below /workspace and /home/user of the machine."""
    with tempfile.TemporaryDirectory(prefix="paddock-templates-", dir=os.environ.get("PADDOCK_TEST_DIR", "/var/tmp")) as folder:
        os.chmod(folder, 0o755)
        file = Path(folder, "filled.template")
        file.write_text(TEMPLATE)
        file.chmod(0o644)
        with Server({**SETTINGS, "template_dir": folder}) as server:
            api = server.client()
            made = api.post("/v1/sandboxes", json={"provider": "local", "template": "filled"})
            assert made.status == 201, made
            done = api.post(f"/v1/sandboxes/{made.json()['id']}/exec", json={"command": "cat deep/one ~/two ~/three"}).json()
            assert done["stdout"] == "of the workspace\nof the home\nof the home, too\n", done
    assert not Path("/workspace/deep").exists() and not Path("/home/user/two").exists()
