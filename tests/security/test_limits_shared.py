"""Limits that the kernel counts per user or per machine: one sandbox must not use them up for
another one, nor for the host's root."""

import ctypes
import os

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .limit_checks import PROBE, attack, check_host, check_neighbour, reported

# resource, how many A tries to take, how many B must still get
SHARED = [
    ("inotify", 100000, 64),
    ("pipe", 100000, 64),
    ("signal", 1000000, 64),
    ("queue", 100000, 4),
    ("segment", 100000, 64),
    ("terminal", 100000, 16),
    ("memfd", 100000, 64),
    ("socket", 100000, 64),
]


@pytest.mark.parametrize("user", ["user", "root"])
@pytest.mark.parametrize("resource,greedy,modest", SHARED, ids=[s[0] for s in SHARED])
def test_what_one_sandbox_takes_is_not_missing_elsewhere(fixtures, as_root, resource, greedy,
                                                         modest, user):
    command = [PROBE, "take", resource, greedy, 60]
    with attack(fixtures, command, ready=resource, ready_limit=10, user=user) as (_, _ns, line):
        assert int(line[1]) > 0, f"A got none at all: {line}"
        result = paddock.run_record([PROBE, "take", resource, modest, 0], binds=fixtures.binds())
        taken, error = reported(result, resource)
        assert taken == modest, f"A took {line[1]}, then B got {taken} ({error})"
        check_host_can_still(resource)
        check_neighbour()


def check_host_can_still(resource):
    """The host's root takes a few of the same."""
    libc = ctypes.CDLL(None, use_errno=True)
    if resource == "inotify":
        fd = libc.inotify_init1(os.O_CLOEXEC)
    elif resource == "terminal":
        fd = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    elif resource == "pipe":
        other, fd = os.pipe()
        os.close(other)
    elif resource == "memfd":
        fd = os.memfd_create("x")
    elif resource == "signal":
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


@pytest.mark.parametrize("resource", ["null", "socket", "memfd", "pipe"])
def test_descriptors_in_many_processes(fixtures, resource):
    """The table of open files of the machine stays far from full."""
    most = int(host.sysctl("fs.file-max"))
    with attack(fixtures, [PROBE, "take-many", resource, 100, 60], pids=128):
        paddock.wait_for(lambda: int(host.sysctl("fs.file-nr").split()[0]) > 500, 5, "files open")
        check_host()
        check_neighbour()
        assert int(host.sysctl("fs.file-nr").split()[0]) < most / 2


def test_locks_and_timers_do_not_reach_the_host(fixtures):
    """POSIX timers count as pending signals of the uid; the host's root keeps its own."""
    code = ("import ctypes, time\nlibc = ctypes.CDLL(None)\nt = ctypes.c_void_p()\nn = 0\n"
            "while n < 200000 and libc.timer_create(1, None, ctypes.byref(t)) == 0: n += 1\n"
            "print('timers', n, flush=True)\ntime.sleep(60)")
    with attack(fixtures, ["/usr/bin/python3", "-c", code], ready="timers"):
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
        fd = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
        if fd >= 0:
            os.close(fd)
        assert fd < 0, "the host's root was not harmed: the test above proves nothing"
