"""Sandboxes in docker through the server: what the jail's can, these can."""

import errno
import io
import json
import os
import shutil
import socket
import tarfile
import threading

import pytest

from paddock_testing import coordinated
from paddock_testing import run as paddock
from paddock_testing.server import Client, Server, check_error


@pytest.fixture(scope="module")
def api(server):
    return Client(server.host, server.port, server.key)


class Box:
    def __init__(self, api, image, provider="docker", **more):
        self.api = api
        answer = api.request("POST", "/v1/sandboxes",
                             json={"provider": provider, "image": image, **more})
        assert answer.status == 201, answer
        self.info = answer.json()
        self.base = "/v1/sandboxes/" + self.info["id"]

    def ask(self, **body):
        return self.api.request("POST", self.base + "/exec", json=body)

    def exec(self, command=None, **body):
        if command is not None:
            body["command"] = command
        answer = self.ask(**body)
        assert answer.status == 200, answer
        return answer.json()

    def told(self):
        return self.api.request("GET", self.base).json()

    def close(self):
        self.api.request("DELETE", self.base)


@pytest.fixture
def make(api):
    made = []

    def box(image, **more):
        made.append(Box(api, image, **more))
        return made[-1]

    yield box
    for b in made:
        b.close()


@pytest.fixture(scope="module")
def bash(api, images):
    box = Box(api, images["bash"])
    yield box
    box.close()


def test_a_sandbox_says_what_it_is(bash):
    info = bash.told()
    assert (info["provider"], info["isolation"], info["image"]) == ("docker", "basic", "test/bash:1")
    assert info["reason"]


@pytest.mark.parametrize("image", ["bash", "sh", "user"])
def test_lines_with_directory_and_variables(make, images, image):
    box = make(images[image])
    told = box.exec("echo out $FROM_IMAGE; echo err >&2; exit 3")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out yes\n", "err\n", 3)
    line = """mkdir -p /tmp/d; cd /tmp/d; export A="b 'c'" N='x\ny'; U=1; exit 3"""
    assert box.exec(line)["state"] == "updated"
    assert box.exec('pwd; echo "$A$U"; echo "$N"')["stdout"] == "/tmp/d\nb 'c'\nx\ny\n"
    assert box.exec(argv=["pwd"])["stdout"] == "/tmp/d\n"
    assert box.exec("unset A; cd /; cat /tmp/none")["exit_code"] == 1
    assert box.exec('pwd; echo "${A-none}"')["stdout"] == "/\nnone\n"


def test_a_line_of_sh_with_a_descriptor_of_its_own(make, images):
    """The state goes through 8 there, and never into a file of the line's."""
    box = make(images["sh"])
    assert box.exec("cd /tmp; exec 9>/tmp/nine; echo x >&9")["state"] == "updated"
    assert box.exec("cd /; exec 8>/tmp/eight; echo x >&8")["state"] == "kept"
    assert box.exec("pwd; cat /tmp/nine /tmp/eight")["stdout"] == "/tmp\nx\nx\n"


def test_an_image_without_a_shell(make, images):
    box = make(images["none"])
    assert box.exec(argv=["/busybox", "echo", "x"])["stdout"] == "x\n"
    refused = box.ask(command="echo x")
    assert refused.status >= 400 and "shell" in refused.text, refused


def test_commands_have_no_power(bash):
    told = bash.exec("id -u; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status")["stdout"].split("\n")
    assert told[0] == "1000"
    for line in told[1:6]:
        assert line.endswith("\t0000000000000000"), line
    assert "NoNewPrivs:\t1" in told and "Seccomp:\t2" in told


def test_root_in_dev(make, images):
    """By sudo, when it is asked for, and for files; with what a jail's root has and nothing more."""
    box = make(images["bash"], profile="dev")
    status = "grep -E '^(CapEff|CapBnd|NoNew)' /proc/self/status"
    own, root = [box.exec(line)["stdout"].split() for line in (status, f"sudo {status}")]
    assert own[1] == "0000000000000000" and own[3:] == root[3:], own
    assert root == ["CapEff:", "00000000000000fb", "CapBnd:", "00000000000000fb", "NoNewPrivs:", "1"]

    assert box.exec("id -u; sudo id -u; sudo sh -c 'echo x >/etc/mine; exit 5'")["exit_code"] == 5
    told = box.exec("id -u; echo $HOME; cat /etc/mine", user="root")
    assert told["stdout"] == "0\n/root\nx\n", told
    assert box.exec("rm -f /etc/mine; test -e /etc/mine")["exit_code"] == 0, "the user may not"

# What only the machine's root may, each with a word that is printed when it worked.
POWERS = {"mount": "mount -t tmpfs x /var", "device": "busybox mknod /tmp/d b 8 0",
          "name": "busybox hostname other",
          "kernel": "cat /proc/sys/kernel/panic >/tmp/now && cat /tmp/now >/proc/sys/kernel/panic"}
POWER_LINE = "; ".join(f"{line} && echo {word}" for word, line in POWERS.items())


def test_root_in_dev_has_no_power_of_the_machine(make, images, dockerd):
    """None of it works; all of it does in a container of the engine's own that is given it."""
    box = make(images["bash"], profile="dev")
    assert box.exec(POWER_LINE + "; echo over", user="root")["stdout"] == "over\n"

    control = json.loads(dockerd.good("POST", "/containers/create", {
        "Image": images["bash"], "Cmd": ["/bin/sh", "-c", POWER_LINE],
        "HostConfig": {"NetworkMode": "none", "CapAdd": ["SYS_ADMIN", "MKNOD"], "ReadonlyPaths": [],
                       "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"]}}))["Id"]
    try:
        dockerd.good("POST", f"/containers/{control}/start")
        dockerd.good("POST", f"/containers/{control}/wait")
        told = dockerd.good("GET", f"/containers/{control}/logs?stdout=1").decode(errors="replace")
    finally:
        dockerd.good("DELETE", f"/containers/{control}?force=1")
    assert [word for word in POWERS if word not in told] == [], told


def test_strict_has_no_root(bash):
    assert bash.exec("sudo id -u")["exit_code"] != 0
    refused = bash.ask(command="id -u", user="root")
    assert refused.status == 501 and "root" in refused.text, refused


def test_the_door_cannot_be_written_or_used(make, images, dockerd):
    """Nothing there can be made, changed or removed, and nobody is behind it any more. The same words do all that to a directory of the sandbox's own."""
    before = running(dockerd)
    box = make(images["bash"])
    words = ("cd {0} && test -e door && test -e init && echo there; echo x > y && echo made; "
             "echo x >> init && echo changed; rm -f door && echo removed; mv init i && echo moved; true")
    box.exec("mkdir -p /tmp/own && cd /tmp/own && touch door init")
    assert box.exec(words.format("/tmp/own"))["stdout"].split() == [
        "there", "made", "changed", "removed", "moved"]
    told = box.exec(words.format("/run/paddock"))
    assert told["stdout"] == "there\n", told

    pid = dockerd.inspect(container_of(box, dockerd, before))["State"]["Pid"]
    place = f"/proc/{pid}/root/run/paddock"
    with pytest.raises(OSError) as error:  # also by root: the mount itself refuses
        open(place + "/y", "w").close()
    assert error.value.errno == errno.EROFS
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s, pytest.raises(OSError) as error:
        s.connect(place + "/door")
    assert error.value.errno == errno.ECONNREFUSED
    assert box.exec("echo on")["stdout"] == "on\n"


def test_there_is_no_network(bash):
    """The same client reaches a server in its container, and not one of the host's."""
    # From a file: the other nc ends its side at once, and who has nothing to say by then has said it all.
    ask = "echo hello > /tmp/hello; nc -w 60 127.0.0.1 {0} < /tmp/hello 2>&1; echo $?"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), paddock.seconds(10)):
            listener.accept()[0].close()  # it can be reached
        told = bash.exec(ask.format(port))
        assert told["stdout"].split()[-1] != "0", told
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()

        inside = f"(nc -l -p {port} > /tmp/got &); " \
                 f"for i in $(seq 200); do grep -q ':{port:04X} ' /proc/net/tcp* && break; " \
                 f"sleep 0.1; done; {ask.format(port)}; " \
                 "for i in $(seq 200); do test -s /tmp/got && break; sleep 0.1; done; cat /tmp/got"
        told = bash.exec(inside)
        assert told["stdout"].split() == ["0", "hello"], told
    assert bash.exec("grep -c : /proc/net/dev")["stdout"] == "1\n"  # lo, which the line above used


def test_files_and_archives(bash):
    data = os.urandom(100_000)
    put = bash.api.request("PUT", bash.base + "/files?path=/workspace/b", data=data)
    assert put.status < 300, put
    got = bash.api.request("GET", bash.base + "/files?path=/workspace/b")
    assert got.status == 200 and got.body == data
    assert bash.exec("wc -c < /workspace/b")["stdout"].strip() == "100000"
    got = bash.api.request("GET", bash.base + "/files/archive?path=/workspace")
    assert got.status == 200, got
    with tarfile.open(fileobj=io.BytesIO(got.body)) as tar:
        assert any(name.endswith("b") for name in tar.getnames())


def test_a_tree_is_killed_with_its_command(bash):
    told = bash.exec("(setsid sleep 1234 &) ; sleep 1234", timeout_s=1)
    assert told["timed_out"], told
    paddock.wait_for(lambda: "1234" not in bash.exec("ps -o args")["stdout"], 30, "all are dead")


# Which of a line's programs the kernel kills is its choice: the largest, and now and then the shell.
GREEDY = "head -c 300m /dev/zero | tail | wc -c; exit ${PIPESTATUS[1]}"


def test_memory_is_limited(make, images):
    control = make(images["bash"], limits={"memory_bytes": 1 << 30}).exec(GREEDY)
    assert (control["stdout"], control["exit_code"]) == (f"{300 << 20}\n", 0), control
    assert control["stopped_by"] is None, control

    box = make(images["bash"], limits={"memory_bytes": 64 << 20})
    told = box.exec(GREEDY)
    shell_killed = told["signal"] == "SIGKILL"
    assert shell_killed or (told["stdout"], told["exit_code"]) == ("0\n", 137), told
    assert told["stopped_by"] == "oom", told
    told = box.exec("echo alive; exit 1")
    assert (told["stdout"], told["stopped_by"]) == ("alive\n", None), "it is told once"


# Not with bash, which tries again until there is room.
CROWD = ["busybox", "sh", "-c", "for i in $(seq 60); do sleep 1000 & done; exit 5"]


def usage(box):
    answer = box.api.get(box.base + "/metrics")
    assert answer.status == 200, answer
    return answer.json()


def end_crowd(box):
    """What CROWD leaves goes on in the background, and fills the sandbox but for one process."""
    def killed():
        """No process can be made as long as the one that made the crowd is not quite gone."""
        answer = box.ask(argv=["busybox", "killall", "sleep"])
        return answer.status == 200 and answer.json()["exit_code"] == 0

    paddock.wait_for(killed, 60, "the crowd is told to end")
    paddock.wait_for(lambda: usage(box)["pids"] < 12, 60, "the crowd is gone")


def test_processes_are_limited(make, images):
    control = make(images["bash"], limits={"pids": 100}).exec(argv=CROWD)
    assert (control["exit_code"], control["stopped_by"]) == (5, None), control

    box = make(images["bash"], limits={"pids": 24})
    told = box.exec(argv=CROWD)
    assert told["exit_code"] not in (0, 5) and told["stopped_by"] == "pids", told
    end_crowd(box)
    told = box.exec(argv=["busybox", "false"])
    assert (told["exit_code"], told["stopped_by"]) == (1, None), "it is told once"


def test_it_can_be_paused(bash):
    assert bash.api.request("POST", bash.base + "/pause").status < 300
    assert bash.told()["state"] == "paused"
    assert bash.api.request("POST", bash.base + "/resume").status < 300
    assert bash.exec("echo on")["stdout"] == "on\n"


def test_a_bad_image_is_named(api):
    for image, status, code in (("UPPER", 400, "invalid"), ("test/missing:3", 404, "not_found")):
        answer = api.request("POST", "/v1/sandboxes", json={"provider": "docker", "image": image})
        check_error(answer, status, code, says=image)


def container_of(box, dockerd, before):
    """The container that was made with a sandbox: the one that was not there before."""
    made = {c["Id"] for c in dockerd.containers() if c["State"] == "running"} - before
    assert len(made) == 1, made
    return made.pop()


def running(dockerd):
    return {c["Id"] for c in dockerd.containers() if c["State"] == "running"}


def lost_for(box):
    """Why a sandbox was lost, as every door tells it afterwards."""
    paddock.wait_for(lambda: box.told()["end_cause"], 60, "it is lost")  # and not only stopping
    told = box.told()
    assert told["end_cause"] == "lost", told
    refused = box.ask(command="echo x")
    assert told["end_reason"][:60] in refused.text, (told, refused)
    return told["end_reason"]


def test_a_kept_root_is_no_image(api):
    for image in ("paddock-root-0123456789abcdef:sb-x", "localhost/paddock-root-1@sha256:" + "0" * 64):
        answer = api.request("POST", "/v1/sandboxes", json={"provider": "docker", "image": image})
        check_error(answer, 403, "denied", says=image[:60])


def test_a_container_that_is_killed_behind_our_back(make, images, dockerd):
    before = running(dockerd)
    box = make(images["sh"])
    assert box.exec("echo x")["stdout"] == "x\n"
    container = container_of(box, dockerd, before)
    dockerd.good("POST", f"/containers/{container}/kill?signal=SIGKILL")
    assert "killed from outside" in lost_for(box)
    paddock.wait_for(lambda: container not in {c["Id"] for c in dockerd.containers()}, 60,
                     "nothing of it stays")


def test_a_container_that_is_out_of_memory(make, images, dockerd):
    """Files in memory belong to no process: the kernel's choice is the one that it was told to take
    first, here init, and with it the whole container."""
    before = running(dockerd)
    box = make(images["bash"], limits={"memory_bytes": 32 << 20})
    pid = dockerd.inspect(container_of(box, dockerd, before))["State"]["Pid"]
    hog = threading.Thread(target=box.ask, kwargs={
        "command": "touch /tmp/began; until test -e /tmp/go; do sleep 0.1; done; "
                   "cat /dev/zero > /dev/shm/hog"})
    hog.start()
    try:
        # Init takes the score back with every command, and a shell may be prepared behind a line: so
        # none is run here.
        paddock.wait_for(lambda: os.path.exists(f"/proc/{pid}/root/tmp/began"), 60, "it began")
        with open(f"/proc/{pid}/oom_score_adj", "w") as f:
            f.write("1000")
        open(f"/proc/{pid}/root/tmp/go", "w").close()
        assert "out of memory" in lost_for(box)
    finally:
        hog.join()


def test_sandboxes_survive_the_daemon(dockerd, images):
    """kill -9 of the daemon: the next one adopts the container with its command and its output."""
    s = Server({"providers": "jail,docker", "docker_host": dockerd.host, "image_pull": "never"})
    s.start()
    try:
        api = Client(s.host, s.port, s.key)
        box = Box(api, images["bash"])
        box.exec("echo kept > /workspace/file; export A=1")
        s.kill()
        s.start()
        api = Client(s.host, s.port, s.key)
        box.api = api
        assert box.exec("cat /workspace/file; echo $A")["stdout"] == "kept\n1\n"
        box.close()
    finally:
        s.close()


# ---- who makes a sandbox with an image, or without one ----

def test_the_route_of_an_image(server):
    api = server.client()
    asked = api.get("/v1/route?image=test/bash:1").json()
    assert asked["provider"] == "docker" and "jail leaves images to the engine" in asked["reason"]
    assert api.get("/v1/route").json()["provider"] == "jail"
    answer = api.get("/v1/route?image=-rm")
    assert answer.status == 400 and "-rm" in answer.json()["error"]["message"], answer
    told = server.run("route", "--image", "test/bash:1").stdout
    assert told.startswith("docker ") and "leaves images to the engine" in told


def test_a_default_image(dockerd, images):
    """A request that names the provider alone has the server's image, and moves there and back."""
    with Server({"providers": "jail,docker", "docker_host": dockerd.host, "image_pull": "never",
                 "default_image": images["bash"]}) as server:
        api = server.client()
        listed = {p["name"]: p["image"] for p in api.get("/v1/providers").json()["providers"]}
        assert listed == {"jail": None, "docker": images["bash"]}
        made = api.post("/v1/sandboxes", json={"provider": "docker"})
        assert made.status == 201, made
        url = f"/v1/sandboxes/{made.json()['id']}"
        for provider in ("docker", "jail", "docker"):
            moved = api.post(f"{url}/move", json={"provider": provider})
            assert moved.status == 200 and moved.json()["provider"] == provider, moved
            done = api.post(f"{url}/exec", json={"command": "echo $FROM_IMAGE; echo x >>log; cat log"})
            assert done.status == 200, done
            assert done.json()["stdout"].startswith("yes\n" if provider == "docker" else "\n"), done
        assert done.json()["stdout"] == "yes\nx\nx\nx\n"
        assert api.delete(url).status == 204


def test_without_any_image(api):
    answer = api.post("/v1/sandboxes", json={"provider": "docker"})
    assert answer.status == 400 and "default_image" in answer.json()["error"]["message"], answer


@pytest.mark.parametrize("image, says", [("a b", "'a b' is not a reference"),
                                         ("paddock-root-1:x", "hold the files of sandboxes")])
def test_a_default_image_that_is_none(dockerd, image, says):
    refused = Server({"providers": "jail,docker", "docker_host": dockerd.host, "default_image": image})
    try:
        with pytest.raises(AssertionError, match=f"default_image: .*{says}"):
            refused.start()
    finally:
        shutil.rmtree(refused.directory)


def test_the_coordinator_of_the_python_package(server, debian, tmp_path):
    coordinated.check_request(server, "docker", tmp_path, "DockerCoordinator", image=debian)
