"""The broker of docker alone: a test plays keeper and asks for boxes of a real engine.

Init in the container is the real one. What it says first on its owner's socket shows that the door
worked.
"""

import contextlib
import io
import json
import os
import socket
import tarfile
import threading
import time
from pathlib import Path

import pytest

from paddock_testing import broker as brokers
from paddock_testing import engine as engines
from paddock_testing import run as paddock


@contextlib.contextmanager
def a_broker(engine, *options, **more):
    b = brokers.Broker(engine, *options, **more)
    try:
        yield b
    finally:
        b.remove()


@pytest.fixture
def broker(dockerd, images):
    with a_broker(dockerd, "--pull", "never") as b:
        yield b


def built(answer, control):
    """Checks that init is there and belongs to the control socket's other end."""
    assert answer.kind == "BUILT", answer
    assert control.recv(1 << 17), "init does not speak"
    answer.close()
    return answer.pid


def of_broker(engine, b):
    return engine.containers(f"paddock.owner={b.instance}")


def left_of(b):
    """What a keeper's brokers have on the machine besides containers."""
    doors = Path(b.state) / "doors" / b.instance
    left = [str(doors)] if doors.exists() else []
    left += [str(p) for p in Path("/sys/fs/cgroup").glob(f"*/paddock-{b.instance}/*") if p.is_dir()]
    return left


@pytest.mark.parametrize("image", ["bash", "sh", "none", "user"])
def test_a_box_of_any_image(broker, dockerd, images, image):
    answer, control = broker.build("one", image=images[image])
    pid = built(answer, control)
    assert dockerd.inspect(f"paddock-{broker.instance}-one")["State"]["Pid"] == pid
    assert broker.sweep("one").kind == "DONE"
    assert not Path(f"/proc/{pid}").exists()
    assert not of_broker(dockerd, broker)


def test_the_container_is_what_the_template_says(broker, dockerd, images):
    answer, control = broker.build("one", image=images["sh"], memory=64 << 20, pids=33, cpu=500)
    pid = built(answer, control)
    told = dockerd.inspect(f"paddock-{broker.instance}-one")
    host = told["HostConfig"]
    assert host["NetworkMode"] == "none" and not host["Privileged"]
    assert (host["Memory"], host["MemorySwap"]) == (64 << 20, 64 << 20)
    assert (host["PidsLimit"], host["NanoCpus"]) == (33, 500_000_000)
    assert told["Config"]["Labels"]["paddock.box"] == "one"
    # Nothing of the host but the door, which cannot be written.
    assert [(m["Destination"], m["RW"]) for m in told["Mounts"]] == [("/run/paddock", False)]
    status = Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    # KILL, SETGID, SETUID, SETPCAP and CHOWN are bits 5, 6, 7, 8 and 0: never more.
    bounding = int(status.split("CapBnd:\t")[1].split()[0], 16)
    assert bounding & ~0b111100001 == 0, hex(bounding)


def test_only_the_containers_first_process_gets_through_the_door(broker, images):
    """Somebody else on the host who may reach the socket gets nothing; init comes behind him."""
    place = Path(broker.state) / "doors" / broker.instance / "one" / "door"
    seen, stop = [], threading.Event()

    def knock():
        while not stop.is_set() and not seen:
            with contextlib.suppress(OSError), socket.socket(
                    socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.connect(str(place))
                s.settimeout(paddock.seconds(30))
                seen.append(s.recv(1000))
            time.sleep(0.001)

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        answer, control = broker.build("one", image=images["sh"])
    finally:
        stop.set()
        thread.join()
    built(answer, control)
    assert seen == [b""], "the stranger was let in, or never came to the door"


def test_what_a_keeper_leaves_is_ended(broker, dockerd, images):
    for name in ("one", "two"):
        built(*broker.build(name, image=images["sh"]))
    assert len(of_broker(dockerd, broker)) == 2
    broker.close()
    assert not of_broker(dockerd, broker)
    paddock.wait_for(lambda: not left_of(broker), 20, "nothing else is left either")


def test_orphans_of_killed_brokers_are_ended_by_the_next(broker, dockerd, images):
    pid = built(*broker.build("one", image=images["sh"]))
    broker.close(hard=True)
    assert len(of_broker(dockerd, broker)) == 1
    with a_broker(dockerd, state=broker.state) as other:
        assert other.sweep("nothing").kind == "DONE"
        assert not of_broker(dockerd, broker)
        assert not Path(f"/proc/{pid}").exists()
        assert not (Path(broker.state) / "doors" / broker.instance).exists()


def test_a_living_keepers_boxes_are_left_alone(broker, dockerd, images):
    built(*broker.build("one", image=images["sh"]))
    with a_broker(dockerd, state=broker.state) as other:
        assert other.sweep("nothing").kind == "DONE"
    assert len(of_broker(dockerd, broker)) == 1


def forsaken(engine, b, images, **labels):
    """A container that the engine has made when those who asked for it had ended; its name."""
    like = engine.inspect(f"paddock-{b.instance}-one")["Config"]["Labels"]
    name = f"paddock-{labels.get('owner', like['paddock.owner'])}-{labels['box']}"
    engine.good("POST", f"/containers/create?name={name}",
                {"Image": images["sh"], "Cmd": ["sleep", "1000"],
                 "Labels": like | {f"paddock.{k}": v for k, v in labels.items()}})
    return name


def test_what_the_engine_made_for_a_keeper_that_is_gone_is_ended(broker, dockerd, images):
    """Its brokers had looked for it, found nothing, and ended as if all was well."""
    built(*broker.build("one", image=images["sh"]))
    with a_broker(dockerd, "--pull", "never", state=broker.state) as other:
        built(*other.build("two", image=images["sh"]))
        ended = [forsaken(dockerd, broker, images, owner=owner, box="three") for owner in ("gone", "gone2")]
        stay = [forsaken(dockerd, broker, images, owner="gone", box="four", store="0123456789abcdef")]
        try:
            paddock.wait_for(lambda: not any(dockerd.call("GET", f"/containers/{n}/json")[0] == 200 for n in ended),
                             120, "they are ended")
            assert len(of_broker(dockerd, broker)) == len(of_broker(dockerd, other)) == 1
            assert [dockerd.inspect(name)["State"]["Status"] for name in stay] == ["created"]
        finally:
            for name in stay + ended:
                dockerd.call("DELETE", f"/containers/{name}?force=true")


def test_requests_may_be_repeated(broker, dockerd, images):
    built(*broker.build("one", image=images["sh"]))
    assert [broker.sweep("one").kind for _ in range(3)] == ["DONE"] * 3
    built(*broker.build("one", image=images["sh"]))
    assert len(of_broker(dockerd, broker)) == 1


def test_the_reason_of_an_end_is_told(broker, dockerd, images):
    built(*broker.build("one", image=images["sh"]))
    dockerd.good("POST", f"/containers/paddock-{broker.instance}-one/kill?signal=SIGKILL")
    paddock.wait_for(lambda: not dockerd.inspect(f"paddock-{broker.instance}-one")["State"]["Running"],
                     30, "the container is dead")
    told = broker.sweep("one")
    assert "killed from outside" in told.says, told


@pytest.mark.parametrize("image, code, says", [
    ("", "invalid", "needs an image"),
    ("UPPER", "invalid", "'UPPER'"),
    ("test/missing:7", "not_found", "test/missing:7"),
    ("x@sha256:12", "invalid", "x@sha256:12"),
])
def test_a_bad_image_is_named(broker, image, code, says):
    answer, _ = broker.build("one", image=image)
    assert answer.code == code and says in answer.says, answer


def test_what_docker_cannot_give_is_refused(broker, images):
    for wanted, code in (({"rung": 2}, "isolation"), ({"profile": 2}, "unsupported"),
                         ({"network": 1}, "unsupported")):
        answer, _ = broker.build("one", image=images["sh"], **wanted)
        assert answer.code == code, answer


# ---- answers that get lost ----

class Forgetful:
    """A proxy before the engine that loses the answer to the first request for a path. With
    `for_good` it answers nothing from then on, until `down` is taken back."""

    def __init__(self, engine, directory, lost, for_good=False):
        self.kind, self.engine, self.lost = engine.kind, engine, lost
        self.for_good, self.down = for_good, False
        self.path = os.path.join(directory, "proxy.sock")
        self.host = "unix://" + self.path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.count = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.relay, args=(client,), daemon=True).start()

    def relay(self, client):
        """One connection; each request is read whole, so that its answer can be told apart."""
        with client, contextlib.suppress(OSError, ValueError):
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = client.recv(65536)
                    if not piece:
                        return
                    head += piece
                head, _, body = head.partition(b"\r\n\r\n")
                lines = head.decode().split("\r\n")
                fields = dict(line.lower().split(": ", 1) for line in lines[1:])
                while len(body) < int(fields.get("content-length", 0)):
                    body += client.recv(65536)
                method, path, _ = lines[0].split(" ")
                if self.down:
                    return
                if self.answer(client, path):
                    continue
                status, answer = self.engine.call(
                    method, path, body or None,
                    {"Content-Type": fields["content-type"]} if "content-type" in fields else {})
                if self.lost in path and not self.count:
                    self.count += 1
                    self.down = self.for_good
                    return
                client.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(answer))
                               if status not in (204, 304) else b"HTTP/1.1 %d X\r\n\r\n" % status)
                client.sendall(answer if status not in (204, 304) else b"")

    def answer(self, _client, _path):
        """For those who answer something themselves: was it answered?"""
        return False

    def close(self):
        self.listener.close()


@pytest.mark.parametrize("lost", ["/containers/create", "/start", "one/json", "images/", "/version"])
def test_a_lost_answer_makes_no_double(dockerd, images, tmp_path, lost):
    proxy = Forgetful(dockerd, str(tmp_path), lost)
    with a_broker(proxy, "--pull", "never") as b:
        answer, control = b.build("one", image=images["sh"])
        if answer.kind == "ERROR":  # a question may fail; then nothing stays, and it can be repeated
            assert lost in ("one/json", "images/", "/version") and answer.code == "bad_gateway", answer
            assert not of_broker(dockerd, b)
            answer, control = b.build("one", image=images["sh"])
        built(answer, control)
        assert proxy.count == 1
        assert len(of_broker(dockerd, b)) == 1
    assert not of_broker(dockerd, b)
    proxy.close()


@pytest.mark.parametrize("lost", ["/containers/create", "/start", "one/json"])
def test_an_engine_that_goes_away_in_between(dockerd, images, tmp_path, lost):
    """The request fails with the reason; the broker lives, and removes what it left later."""
    proxy = Forgetful(dockerd, str(tmp_path), lost, for_good=True)
    with a_broker(proxy, "--pull", "never") as b:
        answer, _ = b.build("one", image=images["sh"])
        assert answer.code == "bad_gateway" and "docker_host" in answer.says, answer
        assert b.sweep("one").code == "bad_gateway"
        assert len(of_broker(dockerd, b)) == 1, "nothing was made: the test does not test"

        proxy.down = False
        assert b.sweep("one").kind == "DONE"
        assert not of_broker(dockerd, b)
        built(*b.build("one", image=images["sh"]))
    proxy.close()


# ---- the engine's own troubles ----

def test_an_engine_that_is_down_is_named():
    place = "/nowhere/none.sock"

    class Nobody:
        kind, host = "docker", f"unix://{place}"

    with a_broker(Nobody()) as b:
        answer, _ = b.build("one", image="x")
        assert answer.code == "bad_gateway", answer
        assert place in answer.says and "docker_host" in answer.says, answer


def test_a_remote_engine_without_certificates_is_refused():
    """Nothing is sent there; on the machine's own loopback it may be without."""
    class Remote:
        kind, host = "docker", "tcp://192.0.2.1:2375"

    with a_broker(Remote()) as b:
        answer, _ = b.build("one", image="x")
        assert answer.code == "invalid" and "192.0.2.1" in answer.says, answer


def test_an_unknown_runtime_is_named(dockerd, images):
    with a_broker(dockerd, "--runtime", "nosuch") as b:
        answer, _ = b.build("one", image=images["sh"])
        assert answer.kind == "ERROR" and "nosuch" in answer.says, answer
        assert "docker_runtime" in answer.says and not of_broker(dockerd, b), answer


# ---- pulling ----

@pytest.fixture(scope="module")
def pushed(dockerd, images, registry):
    return registry.push(dockerd, images["sh"], "some/sh:2")


@pytest.fixture
def credentials(registry, tmp_path):
    path = tmp_path / "auth.json"
    path.write_text(json.dumps(registry.auth()[1]))
    return str(path)


def drop_image(dockerd, name):
    dockerd.call("DELETE", f"/images/{name}?force=1")


def test_a_missing_image_is_pulled_with_credentials(dockerd, pushed, credentials):
    name, digest = pushed
    repository = name.rpartition(":")[0]
    drop_image(dockerd, name)
    with a_broker(dockerd, "--auth", credentials) as b:
        built(*b.build("one", image=name))
        built(*b.build("two", image=f"{repository}@{digest}"))
    with a_broker(dockerd, "--auth", credentials, "--pull", "always") as b:
        built(*b.build("one", image=name))
    with a_broker(dockerd, "--pull", "never") as b:
        built(*b.build("one", image=name))


def test_a_registry_that_refuses_is_told(dockerd, pushed, registry, tmp_path):
    name, digest = pushed
    repository = name.rpartition(":")[0]
    drop_image(dockerd, name)
    drop_image(dockerd, f"{repository}@{digest}")
    with a_broker(dockerd) as b:
        answer, _ = b.build("one", image=name)
        assert answer.code == "denied" and "registry_auth" in answer.says, answer
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"auths": {registry.address: {"auth": "eDp5"}}}))
    with a_broker(dockerd, "--auth", str(wrong)) as b:
        answer, _ = b.build("one", image=name)
        assert answer.code == "denied", answer
    broken = tmp_path / "broken.json"
    broken.write_text("no json")
    with a_broker(dockerd, "--auth", str(broken)) as b:
        answer, _ = b.build("one", image=name)
        assert answer.code == "invalid" and str(broken) in answer.says, answer


def test_an_image_that_no_registry_has(dockerd, registry, credentials):
    with a_broker(dockerd, "--auth", credentials) as b:
        answer, _ = b.build("one", image=f"{registry.address}/none:1")
        assert answer.code == "not_found", answer
        answer, _ = b.build("one", image=f"127.0.0.1:1/none:1")
        assert answer.code == "bad_gateway" and "is the registry up" in answer.says, answer


# ---- roots ----

def put_file(engine, container, name, data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    engine.good("PUT", f"/containers/{container}/archive?path=/home", out.getvalue(),
                headers={"Content-Type": "application/x-tar"})


def get_file(engine, container, name):
    status, data = engine.call("GET", f"/containers/{container}/archive?path=/home/{name}")
    if status == 404:
        return None
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.extractfile(tar.next()).read()


def copy_of(b, source, target, box=""):
    payload = brokers.text(source) + brokers.text(target) + brokers.text(box)
    return b.ask("COPY", payload + brokers.struct.pack("=IiQ", 1, 0, 60_000_000_000))


def test_a_root_outlives_its_box_and_can_be_copied(broker, dockerd, images):
    name = f"paddock-{broker.instance}-"
    built(*broker.build("one", image=images["sh"], root_name="sb-a"))
    put_file(dockerd, name + "one", "x", b"first")

    answer, _ = broker.build("two", image=images["sh"], root_name="sb-a")
    assert answer.code == "conflict" and "sb-a" in answer.says, answer
    assert broker.ask("REMOVE_ROOT", brokers.text("sb-a")).code == "conflict"
    assert copy_of(broker, "sb-a", "sn-b", "one").kind == "DONE"
    assert copy_of(broker, "sb-a", "sn-b", "one").code == "conflict"
    assert copy_of(broker, "sb-none", "sn-c").code == "not_found"

    # It slept and woke: the same files, and the copy has those of its time.
    put_file(dockerd, name + "one", "y", b"second")
    assert broker.sweep("one").kind == "DONE"
    built(*broker.build("three", image=images["sh"], root_name="sb-a"))
    assert get_file(dockerd, name + "three", "x") == b"first"
    assert get_file(dockerd, name + "three", "y") == b"second"
    assert copy_of(broker, "sn-b", "sb-d").kind == "DONE"
    built(*broker.build("four", image=images["sh"], root_name="sb-d"))
    assert get_file(dockerd, name + "four", "x") == b"first"
    assert get_file(dockerd, name + "four", "y") is None

    for box in ("three", "four"):
        assert broker.sweep(box).kind == "DONE"
    for root in ("sb-a", "sn-b", "sb-d"):
        for _ in range(2):
            assert broker.ask("REMOVE_ROOT", brokers.text(root)).kind == "DONE"
    assert not of_broker(dockerd, broker)
    left = json.loads(dockerd.good("GET", "/images/json"))
    assert not [i for i in left if "paddock-root" in str(i["RepoTags"])]


# ---- podman ----

def test_podman_by_the_same_api(podman):
    image = podman.import_image("test/sh:latest", engines.image_tar("sh"))  # it knows no other tag
    with a_broker(podman, "--pull", "never") as b:
        answer, control = b.build("one", image=image)
        built(answer, control)
        assert b.sweep("one").kind == "DONE"
        answer, _ = b.build("two", image="test/missing:1")
        assert answer.code == "not_found", answer
    assert not of_broker(podman, b)
