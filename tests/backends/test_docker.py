"""Sandboxes in docker through the server: what the jail's can, these can."""

import io
import os
import tarfile

import pytest

from paddock_testing import run as paddock
from paddock_testing.server import Client, Server, check_error


@pytest.fixture(scope="module")
def server(dockerd, images):
    s = Server({"providers": "jail,docker", "docker_host": dockerd.host, "image_pull": "never"})
    s.start()
    try:
        yield s
    finally:
        s.close()
    assert not dockerd.containers(), "containers are left behind"


@pytest.fixture(scope="module")
def api(server):
    return Client(server.host, server.port, server.key)


class Box:
    def __init__(self, api, image, **more):
        self.api = api
        answer = api.request("POST", "/v1/sandboxes",
                             json={"provider": "docker", "image": image, **more})
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
    if image == "bash":  # only bash tells where a line has left it
        box.exec("mkdir -p /tmp/d; cd /tmp/d; export A='b c'")
        assert box.exec("pwd; echo \"$A\"")["stdout"] == "/tmp/d\nb c\n"


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


def test_the_door_cannot_be_written_or_used(bash):
    told = bash.exec("ls /run/paddock; echo x > /run/paddock/y; rm /run/paddock/door; echo $?")
    assert "y" not in told["stdout"].split("\n") and told["stdout"].endswith("1\n"), told


def test_there_is_no_network(bash):
    told = bash.exec("cat /proc/net/dev | grep -v lo: | grep : | wc -l")
    assert told["stdout"] == "0\n"


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


def test_memory_is_limited(make, images):
    box = make(images["bash"], limits={"memory_bytes": 64 << 20})
    told = box.exec("head -c 300m /dev/zero | tail | wc -c; echo ${PIPESTATUS[1]}")
    assert told["stdout"].split()[-1] == "137", told
    assert box.exec("echo alive")["stdout"] == "alive\n"


def test_it_can_be_paused(bash):
    assert bash.api.request("POST", bash.base + "/pause").status < 300
    assert bash.told()["state"] == "paused"
    assert bash.api.request("POST", bash.base + "/resume").status < 300
    assert bash.exec("echo on")["stdout"] == "on\n"


def test_a_bad_image_is_named(api):
    for image, status, code in (("UPPER", 400, "invalid"), ("test/missing:3", 404, "not_found")):
        answer = api.request("POST", "/v1/sandboxes", json={"provider": "docker", "image": image})
        check_error(answer, status, code, says=image)


def test_a_container_that_is_killed_behind_our_back(make, images, dockerd):
    box = make(images["sh"])
    before = box.exec("echo x")
    assert before["stdout"] == "x\n"
    mine = [c for c in dockerd.containers() if c["State"] == "running"]
    for container in mine:
        inside = dockerd.inspect(container["Id"])
        if inside["Config"]["Image"].endswith("test/sh:1"):
            dockerd.good("POST", f"/containers/{container['Id']}/kill?signal=SIGKILL")
    paddock.wait_for(lambda: box.told()["state"] not in ("running", "busy"), 30, "it is lost")
    assert box.told()["end_reason"], box.told()


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
