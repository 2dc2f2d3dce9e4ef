"""The server as it is on a stock Debian: cgroup v2 alone, and project quotas for the files of its
sandboxes. Runs in the virtual machine only (tests/vm/suite)."""

import fcntl
import os
import random
import struct
import subprocess

import pytest

from paddock_testing import host
from paddock_testing.run import wait_for
from paddock_testing.server import Server

MIB = 1 << 20


@pytest.fixture(scope="module")
def server():
    with Server({"requests_per_s": 0, "creates_per_s": 0, "storage": "disk"}) as s:
        yield s


@pytest.fixture(scope="module")
def api(server):
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def make(api):
    made = []

    def create(**limits):
        answer = api.post("/v1/sandboxes", json={"limits": limits})
        assert answer.status == 201, answer
        made.append(answer.json())
        return made[-1]

    yield create
    for sandbox in made:
        assert api.delete(f"/v1/sandboxes/{sandbox['id']}").status == 204


def run(api, sandbox, *argv):
    answer = api.post(f"/v1/sandboxes/{sandbox['id']}/exec",
                      json={"argv": list(argv), "timeout_s": 120})
    assert answer.status == 200, answer
    return answer.json()


def projects(roots):
    """{root: project ids other than 0 of what it is made of}."""
    found = {}
    for name in os.listdir(roots):
        if name.startswith("."):
            continue  # on its way out
        # What is no file or directory has no project, and lsattr complains of it.
        said = subprocess.run(["lsattr", "-p", os.path.join(roots, name)], check=False,
                              capture_output=True, text=True).stdout
        lines = [line.split() for line in said.splitlines()]
        found[name] = {int(words[0]) for words in lines if words and words[0].isdigit()} - {0}
    return found


def test_there_is_nothing_but_cgroup_v2(server):
    with open(f"/proc/{server.daemon()}/cgroup", encoding="ascii") as f:
        assert f.read().startswith("0::/")
    assert host.cgroup_trees() == ["/sys/fs/cgroup"]


def test_isolation_is_full(make):
    assert make()["isolation"] == "full"


def test_a_root_has_a_project_and_no_image(server, make):
    make()
    assert not [d for d in host.loop_devices() if server.directory in d]
    def each_has_one():  # but one that the pool is just making
        found = projects(os.path.join(server.state_dir, "roots"))
        return all(len(numbers) == 1 for numbers in found.values()) and found

    found = wait_for(each_has_one, 30, "each root has one project")
    assert len(set.union(*found.values())) == len(found), f"two roots share a quota: {found}"


PROJECT_BASE, PROJECT_MASK = 0x40000000, 0x3fffffff  # of src/jail/quota.c
FSXATTR = struct.Struct("=IIIII8x")  # of linux/fs.h
FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x801c581f, 0x401c5820


def squat(path, project):
    """A file that has the project id of another's inode, as on a disk with more inodes than ids."""
    with open(path, "xb") as f:
        given = bytearray(FSXATTR.size)
        fcntl.ioctl(f, FS_IOC_FSGETXATTR, given)
        flags, size, extents, _, cow = FSXATTR.unpack(given)
        fcntl.ioctl(f, FS_IOC_FSSETXATTR, FSXATTR.pack(flags, size, extents, project, cow))


def tree_of(server, made):
    """Inode and project of a sandbox's root."""
    root = os.path.join(server.state_dir, "roots", f"sb-{made['id']}")
    project, = projects(os.path.dirname(root))[os.path.basename(root)]
    return os.stat(os.path.join(root, "tree")).st_ino, project


def test_an_id_that_is_in_use_is_passed_over(server, api, make):
    """About half of the ids in the neighbourhood of the next roots are taken, by no pattern that inodes
    could have, too: a root whose own it would be gets the next free one, and limits of its own with it.
    The control: the others have their inode's."""
    first, _ = tree_of(server, make(disk_bytes=16 * MIB))
    place = os.path.join(server.directory, "squatters")
    os.mkdir(place)
    chance = random.Random(first)
    squatted = {n for n in range(first - 1000, first + 6000) if chance.random() < 0.5}
    for number in squatted:
        squat(os.path.join(place, str(number)), PROJECT_BASE | number & PROJECT_MASK)

    moved = kept = 0
    for _ in range(30):
        made = make(disk_bytes=16 * MIB)
        inode, project = tree_of(server, made)
        free = next(n for n in range(inode, inode + 64) if n not in squatted)
        assert project == PROJECT_BASE | free & PROJECT_MASK, (inode, project)
        taken = free != inode
        moved, kept = moved + taken, kept + (not taken)
        if taken:
            write = ("dd", "if=/dev/zero", "of=/workspace/big", "bs=1M")
            assert run(api, made, *write, "count=8")["exit_code"] == 0
            assert run(api, made, *write, "count=24")["stopped_by"] == "disk"
        if moved and kept:
            break
    assert moved and kept, (moved, kept, first, inode)


def test_the_quota_holds(api, make):
    small, large = make(disk_bytes=16 * MIB), make(disk_bytes=64 * MIB)
    write = ("dd", "if=/dev/zero", "of=/workspace/big", "bs=1M", "count=24")
    result = run(api, small, *write)
    assert result["exit_code"] == 1 and "quota exceeded" in result["stderr"], result
    assert result["stopped_by"] == "disk", result
    # The control: the same where there is room.
    assert run(api, large, *write)["exit_code"] == 0


def test_the_memory_limit_holds(api, make):
    small, large = make(memory_bytes=64 * MIB), make(memory_bytes=512 * MIB)
    take = ("python3", "-c", f"print(len(bytearray({128 * MIB})))")
    assert run(api, small, *take)["stopped_by"] == "oom"
    assert run(api, large, *take)["stdout"] == f"{128 * MIB}\n"


def test_the_process_limit_holds(api, make):
    fork = ("python3", "-c", "import os, time\nfor i in range(30):\n"
            "    if os.fork() == 0: time.sleep(60)")
    assert run(api, make(pids=20), *fork)["stopped_by"] == "pids"
    assert run(api, make(pids=60), "python3", "-c", "import os\nfor i in range(30):\n"
               "    if os.fork() == 0: os._exit(0)")["exit_code"] == 0
