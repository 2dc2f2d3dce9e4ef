"""The host's side of a sandbox: processes, namespaces, cgroups, mounts, as /proc shows them.

Other sandboxes may run on the machine at the same time, so everything here looks for what belongs
to a test (a word on the command line, a descendant, an executable) before it counts.
"""

import contextlib
import os
import re
from pathlib import Path

FIRST_JAIL_UID = 1073741824
UIDS_PER_JAIL = 65536
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_proc(pid, name):
    """A file of /proc/PID as text; "" when the process is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as f:
        return f.read().decode(errors="replace")
    return ""


def status(pid):
    """The fields of /proc/PID/status; {} when the process is gone."""
    fields = {}
    for line in read_proc(pid, "status").splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    return fields


def command_line(pid):
    return read_proc(pid, "cmdline").split("\0")[:-1]


def uids(pid):
    """Real, effective, saved and file system uid as the host sees them."""
    return [int(n) for n in status(pid).get("Uid", "").split()]


def parent(pid):
    return int(status(pid).get("PPid", 0))


def birth(pid):
    """When a process began, in ticks since boot, or None when it is gone. With its number it names the
    process for ever: numbers are given again."""
    fields = read_proc(pid, "stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else None


def is_zombie(pid):
    return status(pid).get("State", "").startswith("Z")


def descendants(pid):
    """Every process below `pid`, by parent links at this moment."""
    children = {}
    for p in pids():
        children.setdefault(parent(p), []).append(p)
    found, todo = [], [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def with_word(word):
    """Processes in a jail (by pid namespace) that have `word` as an argument. Not pid 1: until its
    exec it shows the command line of whoever asked for the jail."""
    own = namespace(os.getpid(), "pid")
    return [p for p in pids() if word in command_line(p) and not is_jail_init(p)
            and namespace(p, "pid") not in ("", own)]


def namespace(pid, kind):
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    return ""


def is_jail_init(pid):
    return status(pid).get("NSpid", "").split()[1:][-1:] == ["1"]


def jail_init(pid):
    """The init of the jail that `pid` is in: pid 1 of its pid namespace."""
    ns = namespace(pid, "pid")
    for p in pids():
        if namespace(p, "pid") == ns and is_jail_init(p):
            return p
    return None


def in_pid_namespace(ns):
    return [p for p in pids() if namespace(p, "pid") == ns and not is_zombie(p)]


def descriptors(pid):
    """What each descriptor of a process is; {} when it is gone or may not be looked at."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def descriptor_kinds(pid):
    """How many descriptors of each kind: what must not grow in a process that lives long."""
    kinds = {}
    for target in descriptors(pid).values():
        kind = re.sub(r"[0-9]+", "N", target)
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def rss(pid):
    """Resident bytes without what is shared with files."""
    fields = status(pid)
    return 1024 * int(fields.get("RssAnon", "0 kB").split()[0])


def cgroups(pid):
    """Path of the process in every tree: {"memory": "/a/b", "": "/v2/path"}."""
    found = {}
    for line in read_proc(pid, "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def cgroup_trees():
    """Mount points of every cgroup tree."""
    trees = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] in ("cgroup", "cgroup2"):
            trees.append(left.split()[4])
    return trees


def paddock_cgroups():
    """Every cgroup directory that belongs to some keeper, with what is below it."""
    found = set()
    for tree in cgroup_trees():
        for top, names, _ in os.walk(tree):
            for name in names:
                path = os.path.join(top, name)
                if "/paddock-" in path:
                    found.add(path)
    return found


def dead_memory_cgroups():
    """Memory cgroups that the kernel still counts although their directory is gone (v1 only)."""
    for line in Path("/proc/cgroups").read_text().splitlines():
        fields = line.split()
        if fields[0] == "memory" and fields[1] != "0":
            for tree in cgroup_trees():
                if "memory" in os.path.basename(tree).split(","):
                    return int(fields[2]) - sum(1 for _ in os.walk(tree))
    return dead_v2_cgroups()


def dead_v2_cgroups():
    for tree in cgroup_trees():
        with contextlib.suppress(OSError), open(os.path.join(tree, "cgroup.stat")) as f:
            return int(dict(line.split() for line in f)["nr_dying_descendants"])
    return 0


def mounts():
    """Mount points of this mount namespace that have anything to do with Paddock."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(line.split(" ", 2)[2] for line in lines)


def loop_devices():
    """Backing files of loop devices in use."""
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found.add(path.read_text().strip())
    return found


def files_below(*directories):
    """Every name below the directories, relative to nothing."""
    found = set()
    for directory in directories:
        for top, names, files in os.walk(directory):
            found.update(os.path.join(top, name) for name in names + files)
    return found


def free_bytes(path="/"):
    s = os.statvfs(path)
    return s.f_bavail * s.f_frsize


def free_inodes(path="/"):
    return os.statvfs(path).f_ffree


def sysctl(name):
    return Path("/proc/sys", *name.split(".")).read_text().strip()


def kernel_has(path):
    return os.path.exists(path)


def has_word(path, word):
    """Reads a file as far as it has data: those of sandboxes are large and mostly holes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        at, end = 0, os.fstat(fd).st_size
        while at < end:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # holes to the end
                return False
            stop = os.lseek(fd, at, os.SEEK_HOLE)
            before = b""
            while at < stop:
                piece = os.pread(fd, min(1 << 20, stop - at), at)
                if not piece:
                    return False
                if word in before + piece:
                    return True
                before = piece[-len(word):]
                at += len(piece)
        return False
    finally:
        os.close(fd)


def files_with(directory, word):
    """The files below it that have these bytes in them."""
    return [path for root, _, names in os.walk(directory) for name in names
            if os.path.isfile(path := os.path.join(root, name)) and not os.path.islink(path) and has_word(path, word)]
