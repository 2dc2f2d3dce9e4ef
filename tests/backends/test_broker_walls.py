"""What a broker must not do, whoever asks: reach other containers by a name, take a stranger's
container for its own, open files of the host for an image, or begin with another sandbox's root."""

import io
import json
import os
import subprocess
import tarfile

import pytest

from paddock_testing import broker as brokers
from paddock_testing import engine as engines
from paddock_testing import host


@pytest.fixture
def broker(dockerd, images):
    b = brokers.Broker(dockerd, "--pull", "never")
    try:
        yield b
    finally:
        b.remove()


@pytest.fixture
def stranger(dockerd, images):
    """Makes containers that are nobody's here; gives their names."""
    made = []

    def make(name, labels=None):
        dockerd.good("POST", f"/containers/create?name={name}", {
            "Image": images["sh"], "Cmd": ["sleep", "1000"], "Labels": labels or {},
            "HostConfig": {"NetworkMode": "none"}})
        dockerd.good("POST", f"/containers/{name}/start")
        made.append(name)
        return name

    yield make
    for name in made:
        dockerd.call("DELETE", f"/containers/{name}?force=1&v=1")


def is_alive(dockerd, name):
    status, text = dockerd.call("GET", f"/containers/{name}/json")
    return status == 200 and json.loads(text)["State"]["Running"]


def copy_of(b, source, target):
    payload = brokers.text(source) + brokers.text(target) + brokers.text("")
    return b.ask("COPY", payload + brokers.struct.pack("=IiQ", 1, 0, 60_000_000_000))


# ---- system calls ----

def filters(pid):
    return int(host.status(pid)["Seccomp_filters"])


@pytest.mark.parametrize("profile", [0, 1], ids=["strict", "dev"])
def test_a_jails_filter_stands_beside_the_engines(broker, dockerd, images, stranger, profile):
    """Init has loaded it, so whatever it starts has it. What it refuses: test_exec.py, by test_contract.py."""
    plain = dockerd.inspect(stranger("paddock-test-plain"))["State"]["Pid"]
    answer, _ = broker.build("one", image=images["sh"], profile=profile)
    assert answer.kind == "BUILT", answer
    assert filters(answer.pid) == filters(plain) + 1
    answer.close()


# ---- names ----

def test_a_roots_name_reaches_no_other_container(broker, dockerd, stranger):
    """The name was a part of a path, and the path went up to another container."""
    victim = stranger("bystander")
    answer = broker.ask("REMOVE_ROOT", brokers.text(f"x/../../containers/{victim}?force=true&x="))
    assert is_alive(dockerd, victim)
    assert answer.code == "invalid" and f"x/../../containers/{victim}" in answer.says, answer

    # The words themselves would have ended it.
    assert dockerd.call("DELETE", f"/containers/{victim}?force=true&x=")[0] == 204
    assert not is_alive(dockerd, victim)


@pytest.mark.parametrize("name", ["../x", "x/../y", "x?force=true", "x%2f..%2fy", "x#y", ".x", "x y",
                                  "Upper", ""])
def test_names_that_are_none_are_refused(broker, name):
    answers = [broker.ask(kind, brokers.text(name)) for kind in ("REMOVE_ROOT", "KEEP_ROOT")]
    answers += [copy_of(broker, name, "sn-x"), copy_of(broker, "sb-x", name)]
    for answer in answers:
        assert answer.code == "invalid" and f"'{name}'" in answer.says, answer

    # Names of boxes become paths, too: of containers, doors and groups.
    boxes = [broker.ask(kind, brokers.text(name) + brokers.text(""))
             for kind in ("SWEEP", "STRIKE", "THAW")]
    for answer in boxes + [broker.build(name, image="test/sh:1")[0]]:
        if name != "Upper":
            assert answer.code == "invalid" and f"'{name}'" in answer.says, answer

    # A good name is none of these: it is looked for.
    assert copy_of(broker, "sb-x", "sn-x").code == "not_found"
    assert broker.ask("REMOVE_ROOT", brokers.text("sb-x")).kind == "DONE"


# ---- a container of our name that is not ours ----

@pytest.mark.parametrize("labels", [{}, {"paddock.owner": "somebody", "paddock.box": "one"}])
def test_a_stranger_of_our_name_lives_on(broker, dockerd, images, stranger, labels):
    name = stranger(f"paddock-{broker.instance}-one", labels)
    first = dockerd.inspect(name)["Id"]

    answer, _ = broker.build("one", image=images["sh"])
    assert answer.code == "conflict" and name in answer.says, answer
    assert "docker rm" in answer.says and is_alive(dockerd, name), answer
    for kind in ("STRIKE", "SWEEP"):
        assert broker.ask(kind, brokers.text("one") + brokers.text("")).kind == "DONE"
        assert is_alive(dockerd, name), kind

    # The same requests end one that is ours.
    assert dockerd.call("DELETE", f"/containers/{name}?force=1")[0] == 204
    answer, _ = broker.build("one", image=images["sh"])
    assert answer.kind == "BUILT" and dockerd.inspect(name)["Id"] != first, answer
    answer.close()
    assert broker.sweep("one").kind == "DONE" and not is_alive(dockerd, name)


# ---- images ----

def test_the_root_of_another_sandbox_is_no_image(broker, dockerd, images):
    """A kept root is an image of the engine. Only its own sandbox may begin with it."""
    answer, _ = broker.build("one", image=images["sh"], root_name="sb-a")
    assert answer.kind == "BUILT", answer
    answer.close()
    assert copy_of(broker, "sb-a", "sn-a").kind == "DONE"
    kept = [tag for image in json.loads(dockerd.good("GET", "/images/json"))
            for tag in image["RepoTags"] or [] if tag.startswith("paddock-root-")]
    assert len(kept) == 1, kept

    for name in (kept[0], "docker.io/library/" + kept[0], "docker.io/" + kept[0]):
        answer, _ = broker.build("two", image=name)
        assert answer.code == "denied" and name[:60] in answer.says, answer

    # It is there, and the engine itself would take it: also under a name that says less.
    dockerd.good("POST", f"/images/{kept[0]}/tag?repo=test/public&tag=1")
    answer, _ = broker.build("two", image="test/public:1")
    assert answer.kind == "BUILT", answer
    answer.close()

    # Its own sandbox begins with it.
    answer, _ = broker.build("three", image=images["sh"], root_name="sn-a")
    assert answer.kind == "BUILT", answer
    answer.close()
    for box in ("one", "two", "three"):
        assert broker.sweep(box).kind == "DONE"
    for root in ("sb-a", "sn-a"):
        assert broker.ask("REMOVE_ROOT", brokers.text(root)).kind == "DONE"
    dockerd.call("DELETE", "/images/test/public:1?force=1")


def test_an_images_labels_say_nothing(broker, dockerd, images):
    """One that claims to be the root of a sandbox would be woken in its place."""
    claims = dockerd.import_image("test/claims:1", engines.image_tar("sh"), [
        "LABEL paddock.root=sb-victim", "LABEL paddock.owner=somebody", "LABEL paddock.store=x"])
    answer, _ = broker.build("one", image=claims)
    assert answer.kind == "BUILT", answer
    answer.close()
    assert copy_of(broker, "sb-victim", "sn-loot").code == "not_found"
    assert broker.sweep("one").kind == "DONE"
    assert not dockerd.containers(f"paddock.owner={broker.instance}")

    # One that is a root is found by its label, and stays.
    answer, _ = broker.build("two", image=claims, root_name="sb-victim")
    assert answer.kind == "BUILT", answer
    answer.close()
    assert broker.sweep("two").kind == "DONE"
    assert len(dockerd.containers(f"paddock.owner={broker.instance}")) == 1
    assert broker.ask("REMOVE_ROOT", brokers.text("sb-victim")).kind == "DONE"
    assert not dockerd.containers(f"paddock.owner={broker.instance}")


# ---- terminals ----

@pytest.fixture
def host_terminals(tmp_path):
    """A devpts of the host's at PLACE/pts."""
    place = tmp_path / "host"
    (place / "pts").mkdir(parents=True)
    subprocess.run(["mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666", "devpts",
                    str(place / "pts")], check=True)
    yield place
    subprocess.run(["umount", str(place / "pts")], check=True)


def image_with_link(engine, link, to):
    """Our image with one of its directories replaced by a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(engines.image_tar("sh"))) as old, \
            tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            if member.name != link:
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
        info = tarfile.TarInfo(link)
        info.type, info.linkname = tarfile.SYMTYPE, str(to)
        new.addfile(info)
    return engine.import_image("test/link:latest", out.getvalue())


def terminals_of(b, box, image):
    """The descriptor that a broker hands out for a box's terminals, and its init's pid."""
    answer, _ = b.build(box, image=image)
    assert answer.kind == "BUILT", answer
    told = os.fstat(answer.fds[1])
    answer.close()
    return told, answer.pid


def test_an_images_links_do_not_lead_to_the_hosts_terminals(podman, host_terminals):
    """/dev of an image may be a link: seen from the host it leads to the host's files. Docker makes
    a directory of it, podman leaves it."""
    hosts, null = os.stat(host_terminals / "pts").st_dev, os.stat("/dev/null").st_rdev
    plain = podman.import_image("test/plain:latest", engines.image_tar("sh"))
    linked = image_with_link(podman, "dev", host_terminals)
    b = brokers.Broker(podman, "--pull", "never")
    try:
        told, _ = terminals_of(b, "plain", plain)
        assert told.st_rdev != null and told.st_dev != hosts, "a container's terminals are its own"

        told, pid = terminals_of(b, "linked", linked)
        assert os.stat(f"/proc/{pid}/root/dev/pts").st_dev == hosts, "the link leads nowhere"
        assert told.st_rdev == null, "the host's terminals were handed out"
    finally:
        b.remove()
