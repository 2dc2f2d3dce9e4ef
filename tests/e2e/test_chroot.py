"""Paddock inside a chroot of a plain Debian, as root: nothing of the host but /proc and cgroups."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import new_word

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CACHE = Path(os.environ.get("PADDOCK_TEST_CHROOT", "/var/tmp/paddock-test-bookworm"))
BUILD_SECONDS = 400


def make_debian():
    """A minimal Debian, made once and kept; under another name until it is complete."""
    if (CACHE / "bin/sh").exists():
        return
    tool = shutil.which("mmdebstrap") or shutil.which("debootstrap")
    if not tool:
        pytest.skip("neither mmdebstrap nor debootstrap is installed")
    made = CACHE.with_name(f"{CACHE.name}.{os.getpid()}")
    argv = [tool, "--variant=essential" if tool.endswith("mmdebstrap") else "--variant=minbase",
            "bookworm", str(made)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=BUILD_SECONDS)
        if done.returncode:
            pytest.fail(f"{os.path.basename(tool)}: {' '.join(done.stderr.split()[-12:])}")
        made.rename(CACHE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"no Debian within {BUILD_SECONDS} s")
    finally:
        if made.exists():
            shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def debian():
    if paddock.SLOW > 1 and not (CACHE / "bin/sh").exists():
        pytest.skip("making a Debian takes too long here")
    make_debian()
    # /usr of the host must not be needed, so the program is the only thing that comes along.
    copy = CACHE / f"usr/bin/paddock.{os.getpid()}"
    shutil.copy(paddock.PADDOCK, copy)
    copy.rename(CACHE / "usr/bin/paddock")
    return CACHE


def in_chroot(debian, *arguments, mounts="proc cgroup", limit=20, mkfs=None):
    """`paddock ARGUMENTS` in the chroot. The mounts and the processes are in namespaces that end with it, so
    that /proc of the chroot and of the host differ. `mkfs`: a directory with the mkfs.ext4 that it has."""
    script = f"""set -e
        mount --make-rprivate /
        case "{mounts}" in *proc*) mount -t proc proc {debian}/proc;; esac
        case "{mounts}" in *cgroup*)
            mount -t tmpfs t {debian}/sys
            mkdir -p {debian}/sys/fs/cgroup
            mount --rbind /sys/fs/cgroup {debian}/sys/fs/cgroup;;
        esac
        mount --bind /dev {debian}/dev
        mount -t tmpfs t {debian}/run
        mount -t tmpfs t {debian}/var/lib
        case "{mkfs}" in /*)
            mount --bind {mkfs} {debian}/usr/local/sbin
            own={debian}/usr/sbin/mkfs.ext4
            test ! -e $own || mount --bind {mkfs}/mkfs.ext4 $own;;
        esac
        exec chroot {debian} /usr/bin/paddock "$@"
    """
    return subprocess.run(["unshare", "-m", "-p", "-f", "/bin/bash", "-c", script, "bash",
                           *map(str, arguments)], capture_output=True, text=True, check=False,
                          timeout=paddock.seconds(limit), stdin=subprocess.DEVNULL,
                          env=paddock.clean_environment())


def check(done, status, out):
    assert (done.returncode, done.stdout) == (status, out), (done.stdout, done.stderr)


def test_a_command_runs(debian):
    check(in_chroot(debian, "run", "--", "/bin/sh", "-c", "id -u; pwd; exit 9"), 9,
          "1000\n/workspace\n")


def test_the_programs_are_the_chroots(debian):
    marker = debian / "usr/share/paddock-marker"
    marker.write_text("in the chroot\n")
    check(in_chroot(debian, "run", "cat", "/usr/share/paddock-marker"), 0, "in the chroot\n")


def test_the_host_cannot_be_seen(debian, tmp_path):
    """Leaving the chroot on the way to the jail must not lead the command out of it."""
    secret = tmp_path / "secret"
    secret.write_text("s")
    tmp_path.chmod(0o755)
    done = in_chroot(debian, "run", "--user", "root", "--profile", "dev", "--", "/bin/sh", "-c",
                     f"cat {secret} /proc/1/root{secret} /../../..{secret}; ls /")
    assert done.returncode == 0 and "var" in done.stdout.split(), done.stderr
    assert done.stdout.splitlines()[0] != "s"


def test_binds_and_roots_are_the_chroots(debian, tmp_path):
    """A path of the command line means what it means inside the chroot."""
    (debian / "srv/data").mkdir(exist_ok=True)
    (debian / "srv/data/f").write_text("inside\n")
    check(in_chroot(debian, "run", "--bind", "/srv/data:/data", "cat", "/data/f"), 0, "inside\n")
    outside = in_chroot(debian, "run", "--bind", f"{tmp_path}:/data", "true")
    assert outside.returncode == 2, outside.stderr


def test_a_directory_as_root(debian):
    image = debian / "srv/image"
    (image / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(paddock.PADDOCK, image / "bin/program")
    done = in_chroot(debian, "run", "--root", "/srv/image", "/bin/program", "--version")
    assert done.returncode == 0 and done.stdout.startswith("paddock "), done.stderr


def test_limits_and_isolation(debian):
    done = in_chroot(debian, "run", "--json", "--min-isolation", "full", "--memory", "32M", "--",
                     "tail", "/dev/zero")
    assert '"stopped_by":"oom"' in done.stdout, (done.stdout, done.stderr)


def test_timeout_leaves_nothing(debian):
    word = new_word()
    done = in_chroot(debian, "run", "--timeout", "500ms", "--", "sh", "-c",
                     f"setsid sleep {word} & sleep {word}")
    assert done.returncode == 124, done.stderr
    assert not host.with_word(word)


def test_sudo(debian):
    check(in_chroot(debian, "run", "--profile", "dev", "sudo", "id", "-u"), 0, "0\n")


def named_root(debian, mkfs=None):
    """Its store is on a tmpfs, which has no project quotas: so it is an image."""
    return in_chroot(debian, "run", "--name", "box", "--disk", "24M", "--", "echo", "fine", mkfs=mkfs)


def test_a_named_root_without_mkfs_says_what_to_install(debian):
    """The host's mkfs.ext4 is not the chroot's."""
    done = named_root(debian)
    if (debian / "usr/sbin/mkfs.ext4").exists():
        check(done, 0, "fine\n")
    else:
        assert done.returncode == 125 and "apt install e2fsprogs" in done.stderr, done.stderr


def test_a_named_root_is_made_by_the_mkfs_of_the_chroot(debian, tmp_path):
    real = shutil.which("mkfs.ext4", path="/usr/sbin:/sbin")
    libraries = re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", real], capture_output=True, text=True,
                                                         check=True, timeout=30).stdout)
    tmp_path.chmod(0o755)
    for file in [real, *libraries]:
        shutil.copy(file, tmp_path)
    loader = next(os.path.basename(file) for file in libraries if "/ld-" in file)
    here = "/usr/local/sbin"
    (tmp_path / "mkfs.ext4").rename(tmp_path / "mkfs.real")
    (tmp_path / "mkfs.ext4").write_text(
        f'#!/bin/sh\nexec {here}/{loader} --library-path {here} {here}/mkfs.real "$@"\n')
    (tmp_path / "mkfs.ext4").chmod(0o755)
    check(named_root(debian, tmp_path), 0, "fine\n")


@pytest.mark.parametrize("line, says", [("exit 3", "exit status 3"), ("kill -9 $$", "signal 9")])
def test_a_mkfs_that_fails_is_told(debian, tmp_path, line, says):
    tmp_path.chmod(0o755)
    (tmp_path / "mkfs.ext4").write_text(f"#!/bin/sh\n{line}\n")
    (tmp_path / "mkfs.ext4").chmod(0o755)
    done = named_root(debian, tmp_path)
    assert done.returncode == 125 and says in done.stderr, done.stderr


def test_without_cgroups_it_says_what_is_missing(debian):
    done = in_chroot(debian, "run", "--json", "true", mounts="proc")
    assert done.returncode == 0 and '"isolation":"basic"' in done.stdout, done.stderr
    assert '"reason":null' not in done.stdout
    refused = in_chroot(debian, "run", "--min-isolation", "full", "true", mounts="proc")
    assert refused.returncode == 125 and "full" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_without_proc_it_says_so(debian):
    done = in_chroot(debian, "run", "true", mounts="cgroup")
    assert done.returncode == 125 and "/proc" in done.stderr and done.stderr.count("\n") == 1
