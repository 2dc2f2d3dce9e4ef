"""Paddock for an unprivileged user, and inside a chroot: fewer walls, and none of them missing
without a word."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.battery import check_denied, ids, try_attacks

from . import test_dev, test_env_fds, test_mounts, test_net, test_proc, test_seccomp, test_userns
from .limit_checks import PROBE, new_word

UID = 1000

# Rows that speak of a second uid, or of the host's root, which a single uid cannot keep apart.
ONE_UID_ONLY = {
    "host-ids-in-map": "the one id that is mapped is the caller's",
    "host-groups-in-map": "the one id that is mapped is the caller's",
}
TABLES = (test_userns, test_seccomp, test_proc, test_dev, test_net, test_mounts, test_env_fds)
ATTACKS = [a for table in TABLES for a in table.ATTACKS if a.id not in ONE_UID_ONLY]
UNIQUE = list({a.id: a for a in ATTACKS}.values())


@pytest.fixture(scope="module")
def unprivileged(tmp_path_factory):
    """Options of `run` that make it an ordinary user's, with a home of its own."""
    if os.geteuid() == 0:
        top = Path("/tmp") / f"paddock-rootless-{os.getpid()}"
        for name in (top, top / "home", top / "run"):
            name.mkdir(mode=0o755)
            os.chown(name, UID, UID)
        uid = UID
    else:
        top = tmp_path_factory.mktemp("rootless")
        (top / "home").mkdir()
        (top / "run").mkdir(mode=0o700)
        uid = None
    binary = top / "paddock"
    shutil.copy(paddock.PADDOCK, binary)
    binary.chmod(0o755)
    allowed = subprocess.run(["unshare", "-Ur", "true"], user=uid, check=False,
                             stderr=subprocess.PIPE, timeout=paddock.seconds(10))
    if allowed.returncode:
        shutil.rmtree(top)
        pytest.skip(f"no user namespaces for ordinary users: {allowed.stderr.decode().strip()}")
    yield {"uid": uid, "binary": str(binary), "cwd": str(top),
           "env": {"HOME": str(top / "home"), "XDG_RUNTIME_DIR": str(top / "run")}}
    shutil.rmtree(top)


def test_a_command_runs(unprivileged):
    result = paddock.run(["/bin/sh", "-c", "echo hello; exit 3"], **unprivileged)
    assert (result.status, result.out) == (3, "hello\n"), result.explain()


def test_the_record_does_not_claim_full_isolation(unprivileged):
    result = paddock.run_record(["/bin/true"], **unprivileged)
    assert result.record["isolation"] == "basic", result.explain()


def test_a_stronger_rung_is_refused(unprivileged):
    result = paddock.run(["/bin/true"], min_isolation="full", **unprivileged)
    assert result.status == 125, result.explain()
    assert "full" in result.err, result.explain()


@pytest.fixture(scope="module")
def rootless_statuses(fixtures, unprivileged):
    options = dict(unprivileged)
    env = options.pop("env")
    saved = {k: os.environ.get(k) for k in env}
    os.environ.update(env)
    try:
        options.pop("cwd")
        return try_attacks(fixtures, UNIQUE, "strict", "user", **options)
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@pytest.mark.parametrize("attack", UNIQUE, ids=ids(UNIQUE))
def test_attack_is_denied(rootless_statuses, attack):
    check_denied(rootless_statuses[attack.id])


@pytest.mark.parametrize("line", ["probe mem 1", "probe read /proc/1/environ", "probe ptrace 1",
                                  "ls /proc/1/fd | grep -q .", "probe prlimit 1"])
def test_init_is_out_of_reach_with_one_uid(fixtures, unprivileged, line):
    result = paddock.run(["/bin/sh", "-c", f"PATH=/opt/attack:$PATH; {line}"],
                         binds=fixtures.binds(), **unprivileged)
    check_denied(result.status)


def test_without_being_undumpable_init_is_within_reach(fixtures, unprivileged):
    """The control of the test above: with one uid and no capabilities, this is the only wall."""
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")
    weak = os.path.join(unprivileged["cwd"], "paddock-weak")
    shutil.copy(paddock.PADDOCK_WEAK, weak)
    os.chmod(weak, 0o755)
    options = {**unprivileged, "binary": weak,
               "env": {**unprivileged["env"], "PADDOCK_WALL_OFF": "dumpable"}}
    result = paddock.run([PROBE, "mem", "1"], binds=fixtures.binds(), **options)
    assert result.status == 0, result.explain()


def test_processes_are_the_callers_and_filtered(fixtures, unprivileged):
    word = new_word()
    options = {k: v for k, v in unprivileged.items() if k != "cwd"}
    with paddock.background([PROBE, "hold", 60, word], binds=fixtures.binds(), **options):
        pid = paddock.wait_for(lambda: host.with_word(word), 8, "it runs")[0]
        fields = host.status(pid)
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert set(host.uids(pid)) == {UID if os.geteuid() == 0 else os.getuid()}
        for kind in ("ipc", "mnt", "net", "pid", "user", "uts"):
            assert host.namespace(pid, kind) != host.namespace(os.getpid(), kind), kind
        assert set(host.descriptors(pid)) == {0, 1, 2}


def test_timeout_ends_everything(fixtures, unprivileged):
    word = new_word()
    result = paddock.run_record([PROBE, "stubborn", word], binds=fixtures.binds(), timeout="1s",
                                limit=8, **unprivileged)
    assert result.status == 124 and result.record["stopped_by"] == "timeout", result.explain()
    paddock.wait_for(lambda: not host.with_word(word), 3, "nothing is left")


def test_fork_bomb_ends(fixtures, unprivileged):
    result = paddock.run_record([PROBE, "bomb"], binds=fixtures.binds(), timeout="1s", pids=64,
                                limit=10, **unprivileged)
    assert result.status == 124, result.explain()


def test_disk_limit_holds(fixtures, unprivileged):
    result = paddock.run([PROBE, "fill", "/tmp/f", 64 << 20], binds=fixtures.binds(), disk="8M",
                         **unprivileged)
    assert result.status == 1, result.explain()


def test_the_callers_files_are_out_of_sight(unprivileged):
    secret = Path(unprivileged["cwd"]) / "secret"
    secret.write_text("x")
    result = paddock.run(["/bin/cat", str(secret)], **unprivileged)
    assert result.status != 0, result.explain()


# Inside a chroot: a root directory that is not the top of its mount namespace, as build machines
# have. The kernel allows no user namespace from there; Paddock has to find its way out of that.


def run_in_chroot(place, prepare=""):
    """`paddock run` in a chroot, with the usual /proc, /dev and /sys; the mounts are private."""
    script = f"""set -eu
        mount --make-rprivate /
        {prepare}
        mkdir -p {place}/proc {place}/dev {place}/sys {place}/tmp
        cp {paddock.PADDOCK} {place}/tmp/paddock
        mount -t proc p {place}/proc
        mount --rbind /dev {place}/dev
        mount --rbind /sys {place}/sys
        exec chroot {place} /tmp/paddock run -- /bin/sh -c 'id -u; ls /tmp; exit 9'
    """
    done = subprocess.run(["unshare", "-m", "/bin/sh", "-c", script], capture_output=True,
                          text=True, check=False, timeout=paddock.seconds(30),
                          env=paddock.clean_environment())
    assert (done.returncode, done.stdout) == (9, "1000\n"), (done.stdout, done.stderr)


def test_inside_a_chroot_of_this_system(as_root, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    run_in_chroot(place, f"""
        mount -t tmpfs t {place}
        mkdir -p {place}/usr {place}/etc {place}/root {place}/var/lib {place}/run
        for d in bin sbin lib lib64; do [ -e /$d ] && ln -s usr/$d {place}/$d; done
        mount --bind /usr {place}/usr
        cp /etc/passwd /etc/group {place}/etc/
    """)


if paddock.NIGHTLY:  # a Debian of its own takes half a minute
    def test_inside_a_chroot_of_a_plain_debian(as_root, tmp_path):
        given = os.environ.get("PADDOCK_TEST_CHROOT")
        if given:
            run_in_chroot(given)
            return
        if not shutil.which("mmdebstrap"):
            pytest.skip("mmdebstrap is not installed and PADDOCK_TEST_CHROOT is not set")
        place = tmp_path / "debian"
        made = subprocess.run(["mmdebstrap", "--variant=essential", "bookworm", str(place)],
                              capture_output=True, text=True, check=False,
                              timeout=paddock.seconds(180))
        try:
            if made.returncode:
                pytest.fail(f"mmdebstrap: {made.stderr.splitlines()[-1:]}")
            run_in_chroot(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
