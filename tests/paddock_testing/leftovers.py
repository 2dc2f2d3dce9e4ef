"""Everything that a sandbox makes on the host, counted: before, after, and what is new."""

import contextlib
import os
import re
import time
from dataclasses import dataclass, field

from . import host
from . import run as paddock

STATE_DIRS = [os.environ.get("PADDOCK_STATE_DIR", "/var/lib/paddock"),
              os.environ.get("PADDOCK_RUN_DIR", "/run/paddock")]


def executable(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except OSError:
        return ""


def is_ours(pid, binary):
    """A process of a jail, or of the program under test."""
    if executable(pid) == binary:
        return True
    ids = host.uids(pid)
    return bool(ids) and ids[0] >= host.FIRST_JAIL_UID


def held_namespaces(pids):
    """Namespaces that processes are in or hold open; mounts that hold one show as mounts."""
    found = {host.namespace(p, kind) for p in pids for kind in host.NAMESPACES}
    found |= {t for p in pids for t in host.descriptors(p).values() if ":[" in t
              and t.split(":")[0] in host.NAMESPACES}
    return found


def servers(uids_dir="/run/paddock/uids"):
    """{file: state directory} of every server there is or was: it notes so who has its uid."""
    found = {}
    for name in host.files_below(uids_dir):
        with contextlib.suppress(OSError), open(name, encoding="utf-8") as f:
            found[name] = f.read()
    return found


class Strangers:
    """Other copies of the program that run on this machine, also as part of a unit test, their
    jails, their cgroups and what servers have in their state directories: what they make and leave
    while a test runs is not the test's."""

    def __init__(self, binary, state_dirs):
        tops = {p for p in host.pids() if executable(p) != binary
                and os.path.basename(executable(p)).startswith(("paddock", "test_"))}
        self.processes = tops.union(*(host.descendants(p) for p in tops))
        targets = [t for p in tops for t in host.descriptors(p).values()]
        self.instances = {m.group(0) for t in targets if (m := re.search("/paddock-[^/ ]+", t))}
        theirs = {name: place for name, place in servers().items()
                  if place and place not in state_dirs}
        self.files = set(theirs)
        self.state_dirs = tuple(f"{place}/" for place in theirs.values())

    def own_cgroup(self, path):
        return any(instance in path for instance in self.instances)

    def own_loop(self, backing_file):
        return backing_file.startswith(self.state_dirs)


@dataclass
class Snapshot:
    """Sets of names, so that a difference says what was left and not only how much."""

    processes: set = field(default_factory=set)
    mounts: set = field(default_factory=set)
    cgroups: set = field(default_factory=set)
    namespaces: set = field(default_factory=set)
    loops: set = field(default_factory=set)
    files: set = field(default_factory=set)
    dead_cgroups: int = 0

    @classmethod
    def take(cls, binary, state_dirs=None):
        binary = os.path.realpath(binary)
        state_dirs = state_dirs or STATE_DIRS
        # Strangers last: whatever one of them has made by then is known as a stranger's.
        pids, cgroups, loops = host.pids(), host.paddock_cgroups(), host.loop_devices()
        files = host.files_below(*state_dirs)
        strangers = Strangers(binary, state_dirs)
        ours = {p for p in pids if p not in strangers.processes and is_ours(p, binary)}
        return cls(
            processes=ours,
            mounts=set(host.mounts()),
            cgroups={c for c in cgroups if not strangers.own_cgroup(c)},
            namespaces=held_namespaces(ours),
            loops={name for name in loops if not strangers.own_loop(name)},
            # A blank image is kept for the next root of its size.
            files={name for name in files - strangers.files
                   if not os.path.basename(name).startswith(".blank-")},
            dead_cgroups=host.dead_memory_cgroups())

    def new_since(self, before, dead_cgroups_allowed=0):
        """{kind: what is there now and was not before}; empty when nothing was left."""
        found = {}
        for kind in ("processes", "mounts", "cgroups", "namespaces", "loops", "files"):
            new = getattr(self, kind) - getattr(before, kind)
            if new:
                found[kind] = sorted(new)
        if "processes" in found:
            found["processes"] = [f"{p} {' '.join(host.command_line(p))}"
                                  f" ({host.status(p).get('Name')}, {host.status(p).get('State')})"
                                  for p in found["processes"]]
        grown = self.dead_cgroups - before.dead_cgroups
        if grown > dead_cgroups_allowed:
            found["dead memory cgroups"] = grown
        return found


def check_nothing_left(before, binary, *, limit=30, ignore=(), state_dirs=None,
                       dead_cgroups_allowed=3):
    """Waits until the host is as it was; the kernel tidies namespaces and cgroups up later. `ignore`
    names kinds that may differ (files that a first run makes once and for all, say)."""
    deadline = time.monotonic() + paddock.seconds(limit)
    while True:
        left = Snapshot.take(binary, state_dirs).new_since(before, dead_cgroups_allowed)
        left = {kind: what for kind, what in left.items() if kind not in ignore}
        if not left:
            return
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
