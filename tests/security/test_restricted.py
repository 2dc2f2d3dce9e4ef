"""Profile restricted: nothing that the sandbox wrote can be executed, denied programs are missing.

The control of every attack is profile strict, where it works by design.
"""

import functools
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.battery import (Attack, Control, Table, check_denied, explain_attack, ids,
                                     try_attacks)

# Programs that the profile covers; those that the host has are tried.
DENIED = ("rm", "mv", "dd", "unlink", "shred", "sudo", "su", "curl", "wget", "ssh", "scp", "sftp",
          "ssh-keygen", "rsync", "nc", "telnet", "ftp", "socat", "busybox")
ALLOWED = ("awk", "cat", "cut", "date", "echo", "find", "grep", "head", "jq", "ls", "python3",
           "sed", "sort", "tail", "tr", "uniq", "wc")
NOT_EXECUTABLE = 126  # the shell's word for EACCES, which is this profile's wall
PLACES = ("/workspace", "/home/user", "/tmp", "/var/tmp", "/dev/shm", "/run/shm", "/opt/rw")

WRITE_TRUE = "open('/bin/true', 'rb').read()"
MEMFD = ("python3 -c \"import os; f = os.memfd_create('x', 0); os.write(f, " + WRITE_TRUE + ");"
         " os.execve(f, ['true'], {})\"")
UNNAMED = ("python3 -c \"import os; w = os.open('/tmp', os.O_TMPFILE | os.O_RDWR, 0o755);"
           " os.write(w, " + WRITE_TRUE + "); f = os.open('/proc/self/fd/%d' % w, os.O_RDONLY);"
           " os.close(w); os.execve(f, ['true'], {})\"")
MAPPED = ("python3 -c \"import mmap, os; f = os.open('/tmp/m', os.O_RDWR | os.O_CREAT);"
          " os.write(f, b'x' * 4096);"
          " mmap.mmap(f, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)\"")
LIBRARY = "cp \"$(ls /usr/lib/*/libm.so.6 /lib/*/libm.so.6 | head -n 1)\" /tmp/l.so && "

ATTACKS = [
    # Denied programs: a file that can be neither run nor read (status 126 is the shell's EACCES).
    *(Attack(f"run-{name}", f"[ -s \"$(command -v {name})\" ]") for name in DENIED
      if shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")),
    Attack("remove", "touch /tmp/x && rm /tmp/x || exit 1"),
    Attack("remove-by-path", "touch /tmp/x && /usr/bin/rm /tmp/x || /bin/rm /tmp/x"),
    Attack("move-by-env", "touch /tmp/x && /usr/bin/env mv /tmp/x /tmp/y"),
    Attack("copy-of-denied", "cp /usr/bin/rm /tmp/r || cat /bin/rm > /tmp/r && [ -s /tmp/r ]"),
    # What was written is executed.
    *(Attack(f"copy-to-{place.strip('/').replace('/', '-')}",
             f"cp /bin/true {place}/t && {place}/t") for place in PLACES),
    Attack("copy-of-python", "cp \"$(readlink -f /usr/bin/python3)\" /workspace/p"
           " && /workspace/p -c pass"),
    Attack("copy-of-bash", "cp /bin/bash /workspace/b && /workspace/b -c true"),
    Attack("loader-on-a-copy", "cp /bin/true /tmp/t && \"$(ls /lib64/ld-linux-x86-64.so.2"
           " /lib/ld-linux-aarch64.so.1)\" /tmp/t || exit 1"),
    Attack("script-by-its-first-line", "printf '#!/bin/sh\\nexit 0\\n' > /workspace/s"
           " && chmod +x /workspace/s && /workspace/s"),
    Attack("path-with-a-copy", "mkdir -p /tmp/b && cp /bin/true /tmp/b/rm && PATH=/tmp/b:$PATH"
           " && rm x || exit 1"),
    Attack("preload-a-copy", LIBRARY + "! LD_PRELOAD=/tmp/l.so /bin/true 2>&1 | grep -q ."),
    Attack("load-a-copy", LIBRARY + "python3 -c 'import ctypes; ctypes.CDLL(\"/tmp/l.so\")'"),
    Attack("map-a-file-to-run", MAPPED),
    Attack("file-in-memory", "python3 -c \"import os; os.memfd_create('x')\""),
    Attack("program-in-memory", MEMFD),
    Attack("program-without-a-name", UNNAMED),
]

# No profile lets them; a cell does.
NEVER = [
    Attack("mount-again", "mount -o remount,bind,exec /"),
    Attack("take-the-cover-away", "umount /usr/bin/rm"),
    Attack("write-to-the-cover", "echo x > /usr/bin/rm || chmod 755 /usr/bin/rm"),
    Attack("capabilities", "! grep -q '^CapBnd:.0*$' /proc/self/status"),
    Attack("capabilities-now", "! grep -q '^CapEff:.0*$' /proc/self/status"),
    Attack("no-filter", "! grep -q '^Seccomp:.*2$' /proc/self/status"),
]


@functools.lru_cache(maxsize=None)
def statuses(fixtures, profile, user):
    return try_attacks(fixtures, ATTACKS + NEVER, profile, user)


@pytest.mark.parametrize("user", ("user", "root"))
@pytest.mark.parametrize("attack", ATTACKS + NEVER, ids=ids(ATTACKS + NEVER))
def test_attack_is_denied(fixtures, attack, user):
    status = statuses(fixtures, "restricted", user)[attack.id]
    if status == 0:
        pytest.fail(f"{attack.id} worked as {user}\n"
                    + explain_attack(fixtures, attack, "restricted", user), pytrace=False)
    check_denied(status, answers=(NOT_EXECUTABLE,))


@pytest.mark.parametrize("attack", ATTACKS, ids=ids(ATTACKS))
def test_attack_works_in_strict(fixtures, attack):
    if attack.id == "copy-to-opt-rw" and os.geteuid() != 0:
        pytest.skip("without root the directory is not the sandbox user's")
    status = statuses(fixtures, "strict", "user")[attack.id]
    assert status == 0, explain_attack(fixtures, attack, "strict", "user")


CONTROLS = [
    Control("noexec", ("copy-to-workspace", "copy-to-dev-shm", "loader-on-a-copy",
                       "script-by-its-first-line", "preload-a-copy", "program-without-a-name"),
            profile="restricted"),
    Control("denied", ("remove", "remove-by-path", "copy-of-denied"), profile="restricted"),
    Control("seccomp", ("file-in-memory", "program-in-memory"), profile="restricted"),
]
# Every other row of ATTACKS works in strict, which the test above shows.
TABLE = Table(ATTACKS + NEVER, CONTROLS, elsewhere=ids(ATTACKS),
              outside={"take-the-cover-away": "mount --bind /dev/null /usr/bin/rm"})
test_attack_works_without_the_wall, test_attack_works_outside = TABLE.control_tests()


def test_every_writable_mount_is_noexec():
    result = paddock.run_ok(["/bin/cat", "/proc/self/mounts"], profile="restricted")
    writable = []
    for line in result.out.splitlines():
        options = line.split()[3].split(",")
        if "rw" in options:
            writable.append(line.split()[1])
            assert "noexec" in options, line
    assert "/" in writable and "/dev/shm" in writable


def test_what_is_allowed_works():
    have = [name for name in ALLOWED if shutil.which(name, path="/usr/bin:/bin")]
    result = paddock.run_ok(["/bin/sh", "-c", "for c; do command -v $c > /dev/null || echo $c; done",
                             "sh", *have], profile="restricted")
    assert result.out == ""
    work = ("printf 'b\\na\\nb\\n' | sort | uniq -c | sed s/b/c/ | awk '{print $2}' | tr a-z A-Z"
            " | head -n 9 | tail -n 2 | cut -c1 | grep -c .; find / -maxdepth 1 -name tmp; date"
            " > /dev/null; ls /workspace | wc -l | cat")
    assert paddock.run_ok(["/bin/bash", "-c", work], profile="restricted").out == "2\n/tmp\n0\n"


def test_scripts_are_read_by_their_interpreters():
    line = ("echo 'print(6 * 7)' > s.py && python3 s.py && echo 'echo shell' > s.sh && sh s.sh"
            " && python3 -c 'import os; os.remove(\"s.py\"); print(os.listdir())'")
    result = paddock.run_ok(["/bin/sh", "-c", line], profile="restricted")
    assert result.out == "42\nshell\n['s.sh']\n"


def test_a_named_root_is_noexec_too(as_root):
    name = f"t-{uuid.uuid4().hex[:12]}"
    try:
        paddock.run_ok(["/bin/cp", "/bin/true", "/workspace/t"], profile="strict", name=name)
        paddock.run_ok(["/workspace/t"], profile="strict", name=name)
        denied = paddock.run(["/workspace/t"], profile="restricted", name=name)
        assert denied.status == 126, denied.explain()
        kept = paddock.run_ok(["/bin/sh", "-c", "touch /workspace/n; ls /workspace"],
                              profile="restricted", name=name)
        assert kept.out == "n\nt\n"
    finally:
        subprocess.run([paddock.PADDOCK, "root", "rm", name], check=False,
                       timeout=paddock.seconds(20), env=paddock.clean_environment())


COPY_AND_RUN = r"""
#include <fcntl.h>
#include <sys/sendfile.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    if (argc < 3)
        return 0;
    int from = open(argv[1], O_RDONLY), to = open(argv[2], O_WRONLY | O_CREAT, 0755);
    if (to < 0)
        return 8;
    sendfile(to, from, 0, 1 << 24);
    close(to);
    execl(argv[2], argv[2], (char *)0);
    return 7;
}
"""


@pytest.fixture
def own_root():
    """A root directory with two static programs: copy, and one that is called rm."""
    compiler = shutil.which("musl-gcc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no compiler for a static program")
    with tempfile.TemporaryDirectory(prefix="paddock-root-", dir="/var/tmp") as name:
        top = Path(name)
        top.chmod(0o755)
        (top / "usr" / "bin").mkdir(parents=True)
        (top / "bin").mkdir()
        (top / "copy.c").write_text(COPY_AND_RUN)
        subprocess.run([compiler, "-static", "-o", top / "bin" / "copy", top / "copy.c"],
                       check=True, timeout=paddock.seconds(60))
        shutil.copy(top / "bin" / "copy", top / "usr" / "bin" / "rm")
        yield name


def test_a_root_of_the_caller(as_root, own_root):
    """The overlay is noexec; its programs are mounted once more, read-only."""
    def status(profile, *command, **options):
        return paddock.run(command, profile=profile, root=own_root, **options).status

    into_work = ("/bin/copy", "/bin/copy", "/workspace/c")
    into_bin = ("/bin/copy", "/bin/copy", "/bin/c")
    assert status("strict", *into_work) == 0
    assert status("restricted", *into_work) == 7
    assert status("strict", *into_bin, user="root") == 0
    assert status("restricted", *into_bin, user="root") == 8
    assert status("strict", "/usr/bin/rm") == 0
    assert status("restricted", "/usr/bin/rm") == 126
