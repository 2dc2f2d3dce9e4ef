"""`paddock doctor`: what it says, for people and as JSON, and that it notices a missing wall."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paddock_testing import host, leftovers
from paddock_testing import run as paddock

UID = 1000

# Switched-off wall, and an attack that must then be seen to work.
WALLS = [
    ("seccomp", "io_uring"),
    ("caps", "capabilities"),
    ("userns", "host-ids"),
    ("netns", "host-loopback"),
    ("ipcns", "ns-ipc"),
    ("utsns", "host-name"),
    ("cgroupns", "ns-cgroup"),
    ("procmask", "cmdline"),
    ("devs", "devices"),
    ("nosuid", "set-uid-mounts"),
    ("env", "environment"),
    ("fds", "descriptors"),
    ("initid", "same-uid"),
    ("disk", "limit-disk"),
    ("files", "limit-files"),
]


def doctor(*arguments, binary=None, env=None, uid=None, cwd=None, limit=20):
    who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    return subprocess.run([binary or paddock.PADDOCK, "doctor", *arguments], capture_output=True,
                          text=True, check=False, timeout=paddock.seconds(limit), cwd=cwd,
                          env=paddock.clean_environment(env), stdin=subprocess.DEVNULL, **who)


def report_of(done):
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise AssertionError(f"no JSON ({error}): {done.stdout!r} {done.stderr!r}") from None


def by_name(rows):
    named = {row["name"]: row for row in rows}
    assert len(named) == len(rows), "a name is there twice"
    return named


@pytest.fixture(scope="module")
def examined(program):
    """One examination as JSON by whoever runs the tests."""
    done = doctor("--json")
    return done, report_of(done)


@pytest.fixture(scope="module")
def ordinary_user():
    """Options of `doctor` that make it an ordinary user's."""
    if os.geteuid() != 0:
        yield {}
        return
    top = Path("/tmp") / f"paddock-doctor-{os.getpid()}"
    for name in (top, top / "home", top / "run"):
        name.mkdir(mode=0o755)
        os.chown(name, UID, UID)
    shutil.copy(paddock.PADDOCK, top / "paddock")
    (top / "paddock").chmod(0o755)
    yield {"uid": UID, "binary": str(top / "paddock"), "cwd": str(top),
           "env": {"HOME": str(top / "home"), "XDG_RUNTIME_DIR": str(top / "run")}}
    shutil.rmtree(top)


def test_root_gets_full_isolation(as_root, examined):
    done, report = examined
    assert report["jails_work"] is True, report["reason"]
    assert report["rung"] == "full", report["reason"]
    assert done.returncode == 0 and done.stderr == ""


def test_the_report_has_the_promised_shape(examined):
    _, report = examined
    assert set(report) == {"rung", "reason", "jails_work", "checks", "attacks"}
    for check in report["checks"]:
        assert set(check) == {"name", "status", "found", "why", "fix"}, check
        assert check["status"] in ("ok", "info", "warn", "fail") and check["why"], check
        assert check["found"], check
    for attack in report["attacks"]:
        assert set(attack) == {"name", "wall", "result", "works_inside", "works_outside", "detail",
                               "meaning"}, attack
        assert attack["result"] in ("held", "broken", "unproved", "absent"), attack


def test_every_problem_has_a_fix_and_nothing_else_has_one(examined):
    _, report = examined
    for check in report["checks"]:
        if check["status"] in ("warn", "fail"):
            assert check["fix"], check
        if check["status"] == "ok":
            assert not check["fix"], check


def test_everything_asked_for_is_checked(examined):
    _, report = examined
    names = set(by_name(report["checks"]))
    assert names >= {
        "kernel", "container", "chroot", "proc", "cgroups", "seccomp", "overlay", "idmap", "store",
        "open-files", "kernel.core_pattern", "kernel.pid_max", "kernel.kptr_restrict",
        "kernel.io_uring_disabled", "kernel.yama.ptrace_scope", "dev.tty.legacy_tiocsti",
        "fs.protected_symlinks", "fs.protected_fifos", "fs.protected_regular",
        "fs.inotify.max_user_instances", "fs.pipe-user-pages-soft", "swap", "ksm",
        "apparmor-userns", "userns-clone", "userns-max"}
    assert names >= {"ns-" + kind for kind in ("user", "mount", "pid", "ipc", "uts", "net",
                                               "cgroup")}


def test_settings_are_read_from_this_host(examined):
    _, report = examined
    checks = by_name(report["checks"])
    for name, good in (("kernel.kptr_restrict", "12"), ("fs.protected_symlinks", "1")):
        value = host.sysctl(name)
        assert checks[name]["found"] == value
        assert checks[name]["status"] == ("ok" if value in good else "warn")
    assert checks["kernel"]["found"] == os.uname().release


def test_attacks_work_outside_and_not_inside(as_root, examined):
    """The control: a probe that never notices anything would also report that every wall held."""
    _, report = examined
    attacks = by_name(report["attacks"])
    assert len(attacks) >= 30
    assert not [a for a in attacks.values() if a["works_inside"]]
    outside = [a["name"] for a in attacks.values() if a["works_outside"]]
    assert len(outside) >= 45, outside
    for name in ("host-loopback", "host-socket", "host-processes", "environment", "descriptors",
                 "ptrace", "memory", "capabilities", "limit-memory", "limit-pids", "ns-user"):
        assert attacks[name]["result"] == "held", attacks[name]


def test_each_wall_is_attacked(examined):
    _, report = examined
    assert {a["wall"] for a in report["attacks"]} >= {wall for wall, _ in WALLS} - {
        "initid"} | {"nnp", "mntns", "pidns", "init", "memory", "pids", "cpu"}


def test_words_for_people(as_root):
    done = doctor()
    assert done.returncode == 0, done.stdout
    assert "\033" not in done.stdout, "colours without a terminal"
    assert "Jails work: isolation 'full' for root" in done.stdout
    assert "0 inside a jail" in done.stdout
    held = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("  held")]
    assert {"seccomp", "caps", "netns", "memory", "pids"} <= set(held)
    problems = [row for row in report_of(doctor("--json"))["checks"] if row["fix"]]
    for row in problems:
        assert row["fix"] in done.stdout.split("To improve:")[1]


@pytest.mark.alone
def test_it_is_quick(as_root):
    """By the time that it has the processor: a machine that is busy with others is no fault of it."""
    def used():
        times = os.times()
        return times.children_user + times.children_system

    best = 99
    for _ in range(3):
        start = used()
        doctor()
        best = min(best, used() - start)
    assert best < paddock.seconds(2)


@pytest.mark.alone
def test_it_leaves_nothing(as_root):
    before = leftovers.Snapshot.take(paddock.PADDOCK)
    probes = {n for n in os.listdir("/tmp") if n.startswith("paddock-probe")}
    doctor()
    leftovers.check_nothing_left(before, paddock.PADDOCK, limit=60)
    assert {n for n in os.listdir("/tmp") if n.startswith("paddock-probe")} <= probes


def test_an_ordinary_user_gets_basic_isolation(ordinary_user):
    allowed = subprocess.run(["unshare", "-Ur", "true"], user=ordinary_user.get("uid"),
                             check=False, capture_output=True)
    if allowed.returncode:
        pytest.skip("no user namespaces for ordinary users here")
    done = doctor("--json", **ordinary_user)
    report = report_of(done)
    assert (report["rung"], done.returncode) == ("basic", 0), report["reason"]
    assert "not root" in report["reason"]
    attacks = by_name(report["attacks"])
    assert not [a for a in attacks.values() if a["result"] == "broken"]
    for name in ("host-loopback", "environment", "new-userns", "limit-memory", "limit-pids",
                 "ns-net", "filter"):
        assert attacks[name]["result"] == "held", attacks[name]
    # One uid cannot be kept apart from itself, and doctor must not say that it is.
    assert attacks["same-uid"]["result"] == "absent"


def test_no_jail_is_said_plainly(ordinary_user):
    """Where jails cannot be made (here: the run directory is a file) doctor says so."""
    options = dict(ordinary_user)
    options["env"] = {**options.get("env", {}), "PADDOCK_RUN_DIR": "/dev/null/no"}
    done = doctor("--json", **options)
    report = report_of(done)
    assert done.returncode == 1
    assert (report["rung"], report["jails_work"]) == ("none", False)
    assert "/dev/null/no" in report["reason"], report["reason"]
    assert report["attacks"] == []
    words = doctor(**options)
    assert words.returncode == 1 and "Jails do NOT WORK here" in words.stdout


@pytest.mark.parametrize("wall,attack", WALLS, ids=[w for w, _ in WALLS])
def test_a_missing_wall_is_noticed(as_root, wall, attack):
    if not os.access(paddock.PADDOCK_WEAK, os.X_OK):
        pytest.fail(f"no test build at {paddock.PADDOCK_WEAK}")
    done = doctor("--json", binary=paddock.PADDOCK_WEAK, env={"PADDOCK_WALL_OFF": wall})
    report = report_of(done)
    row = by_name(report["attacks"])[attack]
    assert row["result"] == "broken" and row["works_inside"], row
    assert done.returncode == 1
    assert report["rung"] == "none" and report["jails_work"] is True
    words = doctor(binary=paddock.PADDOCK_WEAK, env={"PADDOCK_WALL_OFF": wall})
    assert "Jails are NOT SAFE here" in words.stdout and attack in words.stdout
    assert words.returncode == 1


def test_the_test_build_with_all_walls_is_healthy(as_root):
    """So what the tests above see is the missing wall and not the build."""
    done = doctor("--json", binary=paddock.PADDOCK_WEAK)
    assert done.returncode == 0, report_of(done)["reason"]


def test_a_server_of_somebody_else_is_not_what_is_examined(as_root):
    done = doctor("--json", env={"PADDOCK_KEEPER": "/nonexistent/keeper.sock"})
    assert done.returncode == 0, report_of(done)["reason"]


CHROOT = """set -eu
mount --make-rprivate /
mount -t tmpfs t {place}
mkdir -p {place}/usr {place}/etc {place}/root {place}/var/lib {place}/run
mkdir -p {place}/proc {place}/dev {place}/sys
mkdir -m 1777 {place}/tmp
for d in bin sbin lib lib64; do [ -e /$d ] && ln -s usr/$d {place}/$d; done
mount --bind /usr {place}/usr
cp {binary} {place}/tmp/paddock
mount -t proc p {place}/proc
mount --rbind /dev {place}/dev
mount --rbind /sys {place}/sys
exec chroot {options} {place} /tmp/paddock doctor --json
"""


def doctor_in_chroot(place, options=""):
    script = CHROOT.format(place=place, binary=paddock.PADDOCK, options=options)
    return subprocess.run(["unshare", "-m", "/bin/sh", "-c", script], capture_output=True,
                          text=True, check=False, timeout=paddock.seconds(30),
                          env=paddock.clean_environment())


def test_inside_a_chroot_root_is_as_well_off(as_root, tmp_path):
    done = doctor_in_chroot(tmp_path)
    report = report_of(done)
    assert (done.returncode, report["rung"]) == (0, "full"), report["reason"]
    checks = by_name(report["checks"])
    assert checks["chroot"]["found"] == "inside one"
    assert checks["ns-user"]["status"] == "ok"


def test_inside_a_chroot_a_user_is_told_why_not(as_root, tmp_path):
    done = doctor_in_chroot(tmp_path, f"--userspec={UID}:{UID}")
    report = report_of(done)
    assert (done.returncode, report["rung"]) == (1, "none"), report
    row = by_name(report["checks"])["ns-user"]
    assert row["status"] == "fail" and "chroot" in row["fix"], row


@pytest.mark.parametrize("arguments,named", [
    (["--yaml"], "--yaml"), (["-x"], "-x"), (["--json=1"], "--json"), (["host"], "host"),
    (["--", "more"], "more")])
def test_usage_errors_name_the_value_and_what_is_valid(arguments, named):
    done = doctor(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert named in done.stderr and "--json" in done.stderr or "takes no value" in done.stderr


def test_help():
    done = subprocess.run([paddock.PADDOCK, "help", "doctor"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0 and "--json" in done.stdout and "Exit status" in done.stdout
