"""Limits that the kernel counts per user or per machine: one sandbox must not use them up for
another one, nor for the host's root."""

import contextlib
import ctypes
import errno
import os
import resource
import subprocess

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.battery import COMBINATIONS

from .limit_checks import PROBE, attack, check_host, check_neighbour, reported

# kind, how many A tries to take, how many B must still get
SHARED = [
    ("inotify", 100000, 64),
    ("pipe", 100000, 64),
    ("signal", 1000000, 64),
    ("queue", 100000, 4),
    ("segment", 100000, 64),
    ("terminal", 100000, 8),
    ("memfd", 100000, 64),
    ("socket", 100000, 64),
]


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("kind,greedy,modest", SHARED, ids=[s[0] for s in SHARED])
def test_what_one_sandbox_takes_is_not_missing_elsewhere(fixtures, as_root, kind, greedy,
                                                         modest, user):
    command = [PROBE, "take", kind, greedy, 60]
    with attack(fixtures, command, ready=kind, user=user) as (_, _ns, line):
        assert int(line[1]) > 0, f"A got none at all: {line}"
        result = paddock.run_record([PROBE, "take", kind, modest, 0], binds=fixtures.binds())
        taken, error = reported(result, kind)
        assert taken == modest, f"A took {line[1]}, then B got {taken} ({error})"
        check_host_can_still(kind)
        check_neighbour()


def check_host_can_still(kind):
    """The host's root takes a few of the same."""
    libc = ctypes.CDLL(None, use_errno=True)
    if kind == "inotify":
        fd = libc.inotify_init1(os.O_CLOEXEC)
    elif kind == "terminal":
        fd = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    elif kind == "pipe":
        other, fd = os.pipe()
        os.close(other)
    elif kind == "memfd":
        fd = os.memfd_create("x")
    elif kind == "signal":
        queued, _, _limit = host.status(os.getpid())["SigQ"].partition("/")
        assert int(queued) < 1000, f"{queued} signals are charged to the host's root"
        return
    else:
        check_host()
        return
    assert fd >= 0, os.strerror(ctypes.get_errno())
    os.close(fd)


def test_pipes_keep_their_size_in_the_neighbour(fixtures, as_root):
    """Past the soft limit of pipe pages a uid gets pipes of one or two pages only."""
    with attack(fixtures, [PROBE, "take", "pipe", 100000, 60], ready="pipe"):
        result = paddock.run_record([PROBE, "pipe-size"], binds=fixtures.binds())
        assert reported(result, "pipe-size")[0] == 65536, result.explain()


def open_files():
    return int(host.sysctl("fs.file-nr").split()[0])


def test_without_their_limit_a_jail_has_most_files_of_the_machine(fixtures, as_root):
    """The control: as many as the caller's own limit allows, in each process."""
    need_weak()
    most, before = int(host.sysctl("fs.file-max")), open_files()
    each = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if each * 100 < most / 8 or most > 1 << 40:
        pytest.skip(f"this host allows {each} files a process of {most}: nothing to take")
    with attack(fixtures, [PROBE, "take-many", "null", 100, 60], pids=128, memory="1G",
                ready="take-many", ready_limit=60, gone_limit=60, binary=paddock.PADDOCK_WEAK,
                env={"PADDOCK_WALL_OFF": "descriptors"}) as (_, _ns, line):
        assert open_files() - before > most / 8, f"the host was not harmed: {line}"


@pytest.mark.parametrize("kind", ["null", "socket", "memfd", "pipe"])
def test_descriptors_in_many_processes(fixtures, kind):
    """The table of open files of the machine stays far from full."""
    most, before = int(host.sysctl("fs.file-max")), open_files()
    with attack(fixtures, [PROBE, "take-many", kind, 100, 60], pids=128, ready="take-many",
                ready_limit=60) as (_, _ns, line):
        assert int(line[1]) > 10000, f"the attack took next to nothing: {line}"
        assert open_files() - before > 10000, "the attack's files are not open"
        check_host()
        check_neighbour()
        assert open_files() - before < most / 8


# What the kernel counts for the machine and no group: none of it for a jail.


# kind, the error that a jail sees. The same probe works outside.
REFUSED = [
    ("socket-filter", "EPERM"),
    ("reuseport-filter", "EPERM"),
    ("seccomp-filter", "ENOSYS"),
    ("prctl-filter", "EINVAL"),
    ("aio", "ENOSYS"),
    ("huge-page", "ENOMEM"),
    ("huge-memfd", "EINVAL"),
    ("huge-segment", "ENOMEM"),
    ("core", "EPERM"),
    ("spliced-page", "ENOSYS"),
]


@contextlib.contextmanager
def huge_pages(count):
    """The machine's pool has so many pages; as large as it was afterwards."""
    path = "/proc/sys/vm/nr_hugepages"
    before = int(host.sysctl("vm.nr_hugepages"))
    with open(path, "w") as f:
        f.write(str(before + count))
    try:
        if int(host.sysctl("vm.nr_hugepages")) < before + count:
            pytest.skip("the host has no room for huge pages")
        yield
    finally:
        with open(path, "w") as f:
            f.write(str(before))


def pool_for(kind):
    return huge_pages(4) if kind.startswith("huge") else contextlib.nullcontext()


def take_outside(fixtures, kind, count):
    """How many of a kind an ordinary process of the host gets, and the error of the first that
    it does not get. Segments and pages of huge size need a privilege there: root takes those."""
    uid = 0 if kind == "huge-segment" else 65534
    done = subprocess.run([fixtures.probe, "take", kind, str(count), "0"], capture_output=True,
                          text=True, timeout=paddock.seconds(20), user=uid, check=False)
    _, taken, error = done.stdout.split()
    return int(taken), errno.errorcode.get(int(error), "")


def core_scheduling():
    """Whether the control outside can be had: most kernels, but not where there is no SMT."""
    result = ctypes.CDLL(None, use_errno=True).prctl(62, 0, 0, 0, 0)
    return result == 0 or ctypes.get_errno() not in (errno.EINVAL, errno.ENODEV)


@pytest.mark.parametrize("profile,user", COMBINATIONS)
@pytest.mark.parametrize("kind,refusal", REFUSED, ids=[r[0] for r in REFUSED])
def test_what_the_machine_counts_is_not_for_a_jail(fixtures, as_root, kind, refusal, profile,
                                                   user):
    with pool_for(kind), attack(fixtures, [PROBE, "take", kind, 100000, 60], ready=kind,
                                    profile=profile, user=user) as (_, _ns, line):
        assert line[1:] == ["0", str(getattr(errno, refusal))], f"the jail took: {line}"
        # The control: the same call is in order outside, and none is missing there.
        if kind == "core" and not core_scheduling():
            assert take_outside(fixtures, kind, 1)[1] in ("EINVAL", "ENODEV"), "not EPERM"
        else:
            assert take_outside(fixtures, kind, 2 if kind != "aio" else 1)[0] >= 1
        check_host()
        check_neighbour()


def need_weak():
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")


# kind, how many a jail tries without the filter, how many it must get, how many the host has
# left of them (None: more than can be taken in a test)
UNFILTERED = [
    ("socket-filter", 20, 20, None),
    ("reuseport-filter", 20, 20, None),
    ("seccomp-filter", 20, 20, None),
    ("prctl-filter", 20, 20, None),
    ("aio", 1000, 1, 0),
    ("huge-page", 1000, 4, 0),
    ("huge-memfd", 1000, 4, 0),
    ("spliced-page", 20, 20, None),
]


@pytest.mark.parametrize("kind,greedy,least,left", UNFILTERED, ids=[r[0] for r in UNFILTERED])
def test_without_the_filter_a_jail_takes_it(fixtures, as_root, kind, greedy, least, left):
    """The control: with that wall left out the jail gets them, and where the machine has few of
    them, the host has none."""
    need_weak()
    with pool_for(kind), attack(fixtures, [PROBE, "take", kind, greedy, 60], ready=kind,
                                    binary=paddock.PADDOCK_WEAK,
                                    env={"PADDOCK_WALL_OFF": "seccomp"}) as (_, _ns, line):
        assert int(line[1]) >= least, line
        if left is not None:
            assert take_outside(fixtures, kind, 1)[0] == left, "the host was not harmed"


def socket_pages():
    """Pages of TCP buffers of the whole machine."""
    with open("/proc/net/sockstat") as f:
        for line in f:
            if line.startswith("TCP:"):
                words = line.split()
                return int(words[words.index("mem") + 1])
    raise AssertionError("no line for TCP")


STREAM_MIB = 192


def test_buffers_of_sockets_are_limited(fixtures, as_root):
    """What connections of a jail hold unread is bounded by its memory limit, in every layout. Where
    only v2 is there, they count as the jail's memory, and the jail may end by that."""
    before = socket_pages()
    if not os.path.isdir("/sys/fs/cgroup/memory"):
        result = paddock.run_record([PROBE, "take", "stream", STREAM_MIB, 0], memory="64M",
                                    binds=fixtures.binds())
        if result.record["stopped_by"] == "oom":
            return
        taken, _ = reported(result, "stream")
        assert 1 <= taken < 80, result.explain()
    with attack(fixtures, [PROBE, "take", "stream", STREAM_MIB, 60], memory="64M", ready="stream",
                ready_limit=20) as (_, _ns, line):
        assert int(line[1]) >= 1, f"the jail cannot talk to itself: {line}"
        # What others on the machine hold for a moment is counted, too; the jail's stays.
        paddock.wait_for(lambda: (socket_pages() - before) * 4096 >> 20 < 80, 10,
                         f"less than 80 MiB of buffers beside a limit of 64 MiB: {line}")
        check_host()
        check_neighbour()


def test_without_the_memory_limit_buffers_grow(fixtures, as_root):
    need_weak()
    before = socket_pages()
    with attack(fixtures, [PROBE, "take", "stream", STREAM_MIB, 60], memory="64M", ready="stream",
                ready_limit=20, binary=paddock.PADDOCK_WEAK,
                env={"PADDOCK_WALL_OFF": "memory"}) as (_, _ns, line):
        paddock.wait_for(lambda: (socket_pages() - before) * 4096 >> 20 > 120, 10,
                         "more than 120 MiB without a limit: else the test above proves nothing")
        # A small machine has no more for all of its connections together.
        assert int(line[1]) == STREAM_MIB or int(line[2]) == errno.ENOBUFS, line


def test_all_sandboxes_of_a_server_leave_terminals(fixtures, as_root):
    """As many sandboxes as a server makes by default, each with all the terminals it can get, leave
    the host its reserve and more."""
    most = int(host.sysctl("kernel.pty.max")) - int(host.sysctl("kernel.pty.reserve"))
    result = paddock.run_record([PROBE, "take", "terminal", 100000, 0], binds=fixtures.binds())
    taken, error = reported(result, "terminal")
    assert error == "ENOSPC" and 8 <= taken, result.explain()
    assert taken * 200 < max(most, 3072), f"{taken} terminals for each of 200 sandboxes"
    assert taken * 100 <= max(most, 3072) / 2, "one tenant may have more than half"


def test_locks_and_timers_do_not_reach_the_host(fixtures):
    """POSIX timers count as pending signals of the uid; the host's root keeps its own."""
    code = ("import ctypes, time\nlibc = ctypes.CDLL(None)\nt = ctypes.c_void_p()\nn = 0\n"
            "while n < 200000 and libc.timer_create(1, None, ctypes.byref(t)) == 0: n += 1\n"
            "print('timers', n, flush=True)\ntime.sleep(60)")
    with attack(fixtures, ["/usr/bin/python3", "-c", code], ready="timers", ready_limit=60):
        queued = int(host.status(os.getpid())["SigQ"].partition("/")[0])
        assert queued < 1000
        check_neighbour()


def test_without_the_user_namespace_the_hosts_root_is_starved(fixtures, as_root):
    """The control: ids of the host instead of the jail's own, and root has no inotify left."""
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")
    with attack(fixtures, [PROBE, "take", "inotify", 100000, 60], ready="inotify", user="root",
                binary=paddock.PADDOCK_WEAK, env={"PADDOCK_WALL_OFF": "userns"}) as (_, _ns, line):
        most = int(host.sysctl("fs.inotify.max_user_instances"))
        if int(line[1]) < most - 16:
            pytest.skip(f"another limit came first: {line}")
        # Others of root's may end meanwhile and leave a few.
        libc, taken = ctypes.CDLL(None, use_errno=True), []
        while len(taken) < 64 and (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
            taken.append(fd)
        for fd in taken:
            os.close(fd)
        assert len(taken) < 64, "the host's root was not harmed: the test above proves nothing"
