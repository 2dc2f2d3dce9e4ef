"""A jail that waited as a complete kit is the jail that a builder makes when it is asked: the same
limits, mounts, identity and files, seen from inside and outside."""

import os
import re

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .limit_checks import new_word

LIMITS = {
    "usual": {},
    "smaller": {"memory": "64M", "pids": 20, "cpu": "0.5", "disk": "16M", "files": 500},
    "larger": {"memory": "1G", "pids": 400, "cpu": "1.5", "disk": "300M", "files": 200000},
}

# All that a process can see of its jail and that does not count time or use.
LOOK = r"""
umask; id; hostname; nproc; env | sort; pwd
for p in 1 self; do
    echo "== $p"; tr '\0' ' ' < /proc/$p/cmdline; echo
    grep -vE '^(Name|State|T?gid|Pid|PPid|NS|Vm|Rss|Hugetlb|Threads|.*ctxt|Speculation|Ngid|x86|Umask)' /proc/$p/status |
        grep -vE '^(Cpus|Mems|Tgid|FDSize|Kthread|THP|untag|SigQ)'
    cat /proc/$p/limits /proc/$p/oom_score_adj /proc/$p/uid_map /proc/$p/gid_map /proc/$p/cgroup
done
echo "== mounts"; cat /proc/self/mountinfo
echo "== root"; stat -f -c '%b %c %T %l' / /dev/shm
echo "== files"; find / -xdev -printf '%p %m %U %G %s %l\n' 2>/dev/null | sort
find /dev -printf '%p %m %U %G %l\n' | grep -v /dev/pts/ | sort
ls /proc/self/fd | wc -l
tail -n +3 /proc/net/dev | cut -d: -f1; cat /proc/net/route /proc/net/unix | grep -v Num | wc -l
cat /proc/sys/kernel/shmmax /proc/sys/kernel/msgmni /proc/sys/fs/mqueue/* 2>/dev/null
"""

# Files of a cgroup that say what was used, or when, or by whom.
COUNTERS = re.compile(
    r"(usage|stat|peak|current|pressure|procs|tasks|threads|events|failcnt.*usage|slabinfo|numa"
    r"|clone_children|\.kill$)")


def normal(text):
    """Without what is another jail's by right: ids of mounts and devices, the range of uids."""
    lines = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 9 and "-" in fields and re.fullmatch(r"\d+:\d+", fields[2]):
            fields[0] = fields[1] = fields[2] = "N"
            line = " ".join(fields)
        line = re.sub(r"\b([ug]id)=(\d+)", lambda m: f"{m[1]}={int(m[2]) % 65536}", line)
        line = re.sub(r"^(\s+0\s+)(\d{9,})", r"\1RANGE", line)
        line = re.sub(r"/j\d+\b", "/jN", line).replace("/boot//deleted", "/boot")
        lines.append(line)
    return lines


def files_of(directory):
    values = {}
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if COUNTERS.search(name) or not os.path.isfile(path) or not os.stat(path).st_mode & 0o444:
            continue
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                values[name] = (f.read(), oct(os.stat(path).st_mode), os.stat(path).st_uid)
        except OSError as e:
            values[name] = e.errno
    return values


def inits(keeper):
    return {p for p in host.descendants(keeper.pid) if host.is_jail_init(p)}


def outside(keeper, options):
    """The jail's cgroup files, and whether it had waited."""
    word = new_word()
    waiting = inits(keeper)
    with paddock.background(["sh", "-c", "sleep 60; :", word], env=keeper.env, **options):
        pid = paddock.wait_for(lambda: host.with_word(word), 10, "it runs")[0]
        # The list of processes is read while others come and go.
        init = paddock.wait_for(lambda: [p for p in inits(keeper)
                                         if host.namespace(p, "pid") == host.namespace(pid, "pid")],
                                10, "its init is found")[0]
        groups = {kind: files_of(path) for kind, path in jail_groups(init)}
    return init in waiting, groups


def jail_groups(pid):
    for tree in host.cgroup_trees():
        for path in sorted(set(host.cgroups(pid).values())):
            full = tree + path
            if os.path.isdir(full) and re.search(r"/j\d+$", path):
                yield os.path.basename(tree), full


@pytest.fixture(name="keepers", scope="module")
def _keepers():
    with paddock.Keeper() as waiting, paddock.Keeper(options=["--kits", "0"]) as fresh:
        yield waiting.wait_ready(), fresh.wait_ready()


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("profile", ["strict", "dev", "restricted"])
def test_a_kit_is_the_jail_that_a_builder_makes(keepers, profile, limits):
    options = {"profile": profile, **LIMITS[limits]}
    kept, fresh = keepers

    # The first ones of a profile tell the keeper which kits to make.
    waited, theirs = paddock.wait_for(
        lambda: (seen := outside(kept, options))[0] and seen, 20, "a kit is used")
    assert waited
    was_fresh, ours = outside(fresh, options)
    assert not was_fresh and theirs and theirs.keys() == ours.keys()
    for kind in ours:
        assert theirs[kind] == ours[kind], kind

    inside = [normal(paddock.run_ok(["sh", "-c", LOOK], env=k.env, **options).out)
              for k in keepers]
    assert len(inside[0]) > 100
    assert inside[0] == inside[1]


def test_other_limits_are_told_apart(keepers):
    """The control: this comparison sees limits."""
    _, usual = outside(keepers[0], {})
    _, smaller = outside(keepers[0], LIMITS["smaller"])
    assert usual != smaller
    looks = [normal(paddock.run_ok(["sh", "-c", LOOK], env=keepers[0].env, **LIMITS[n]).out)
             for n in ("usual", "smaller")]
    assert looks[0] != looks[1]


def test_each_kit_has_a_boot_id_and_a_range_of_its_own(keepers):
    seen = [paddock.run_ok(["sh", "-c", "cat /proc/sys/kernel/random/boot_id /proc/self/uid_map"],
                           env=keepers[0].env).out for _ in range(6)]
    assert len({text.split()[0] for text in seen}) == 6
