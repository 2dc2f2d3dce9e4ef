"""Walls: the environment is built from nothing, and no descriptor comes along."""

import os
import subprocess

from paddock_testing import run as paddock
from paddock_testing.battery import Attack, Control, Table

# The battery plants PADDOCK_TEST_SECRET and an inherited descriptor of /etc in its caller.
ATTACKS = [
    Attack("caller-variable", "env | grep -q host-secret-5e1d"),
    Attack("caller-variable-by-name", "env | grep -q ^PADDOCK_"),
    Attack("loader-variable", "env | grep -q ^LD_"),
    Attack("home-of-the-caller", "[ \"$HOME\" = /root ] && [ $(id -u) != 0 ]"),
    Attack("own-environ-file", "grep -qa host-secret-5e1d /proc/self/environ"),
    Attack("anybody-environ-file", "grep -lqa '[h]ost-secret-5e1d' /proc/[0-9]*/environ"),
    Attack("anybody-command-line", "grep -lqa -e '[p]addock.run' /proc/[0-9]*/cmdline"),
    Attack("open-descriptor", "probe descriptors"),
    Attack("descriptor-is-a-directory", "find -L /proc/self/fd -maxdepth 1 -type d ! -name fd"
           " -exec test -e {}/passwd \\; -print | grep -q ."),
    Attack("descriptor-of-a-namespace",
           "ls -l /proc/self/fd /proc/$PPID/fd | grep -qE '(mnt|net|pid|user|cgroup|ipc|uts):\\['"),
    Attack("descriptor-of-a-cgroup", "ls -l /proc/self/fd /proc/$PPID/fd | grep -q cgroup"),
    Attack("descriptor-of-a-socket", "ls -l /proc/$PPID/fd | grep -q socket:"),
    Attack("path-has-writable-part", "IFS=:; for d in $PATH; do [ $d = /opt/attack ] && continue;"
           " [ -w $d ] && exit 0; done; exit 1"),
]

CONTROLS = [
    Control("env", ("caller-variable", "caller-variable-by-name", "own-environ-file")),
    Control("fds", ("open-descriptor",)),
]


TABLE = Table(ATTACKS, CONTROLS, outside={
    "home-of-the-caller": "setpriv --reuid 1000 --clear-groups sh -c {}",
    "anybody-command-line": "sh -c {} paddock run",
    "descriptor-is-a-directory": "exec 9</etc",
    "descriptor-of-a-namespace": "exec 9</proc/self/ns/net",
    "descriptor-of-a-cgroup": "exec 9</sys/fs/cgroup",
    "descriptor-of-a-socket":
        "bash -c 'exec 9<>/dev/udp/127.0.0.1/9; sh -c \"$0\"; exit $?' {}",
})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


def test_environment_is_exactly_what_was_asked(fixtures):
    """Nothing but the documented variables and those of --env."""
    result = paddock.run_ok(["/usr/bin/env"], env_in={"ASKED": "a b"}, env={"NOT_ASKED": "1"})
    names = {line.partition("=")[0] for line in result.out.splitlines()}
    assert "ASKED" in names and "NOT_ASKED" not in names
    extra = names - {"ASKED", "HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD",
                     "HOSTNAME", "TZ", "LC_ALL", "TMPDIR"}
    assert not extra, result.explain()
    assert "HOME=/home/user" in result.out.splitlines()


def test_standard_descriptors_that_are_closed_are_not_filled_from_inside(fixtures):
    """A caller without stdin, stdout or stderr must not hand out its own sockets as 0, 1, 2."""
    argv = paddock.jail_argv(["/bin/sh", "-c", "ls -l /proc/self/fd > /opt/rw/listing 2>&1"],
                             binds=fixtures.binds())
    listing = os.path.join(fixtures.rw_dir, "listing")
    with open(listing, "w"):
        os.chmod(listing, 0o666)
        if os.geteuid() == 0:
            os.chown(listing, fixtures.BIND_OWNER, fixtures.BIND_OWNER)
    quoted = " ".join(f"'{a}'" for a in argv)
    subprocess.run(["/bin/sh", "-c", f"exec {quoted} <&- >&- 2>&-"], check=False,
                   timeout=paddock.seconds(20), env=paddock.clean_environment())
    with open(listing) as f:
        text = f.read()
    assert "->" in text, text
    for word in ("socket:", "anon_inode", "cgroup", "ns/", "memfd"):
        assert word not in text, text


def test_many_inherited_descriptors(fixtures):
    """A caller with many open descriptors, high numbers too: none arrives."""
    planted = []
    try:
        for number in (3, 7, 63, 200, 900):
            fd = os.open("/etc/passwd", os.O_RDONLY)
            os.dup2(fd, number + 100, inheritable=True)
            os.close(fd)
            planted.append(number + 100)
        result = paddock.run(["/opt/attack/probe", "descriptors"], binds=fixtures.binds(),
                             pass_fds=tuple(planted))
    finally:
        for fd in planted:
            os.close(fd)
    assert result.status == 1, result.explain()
