"""Walls: empty capability sets, no_new_privs, nosuid.

In profile strict nobody has a capability. In profile dev sandbox root has seven of them over its
own user namespace: rows that are open there say so.
"""

import subprocess

from paddock_testing import run as paddock
from paddock_testing.battery import (DEV_ROOT, DEV_ROOT_CAPABILITIES, Attack, Control,
                                     Table, needs_resource)

SEVEN = "profile dev gives sandbox root CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETUID, SETGID, KILL"


def open_in_dev(name, line):
    return Attack(name, line, open_for=(DEV_ROOT,), why=SEVEN)


ATTACKS = [
    Attack("any-capability", "probe capabilities 0", open_for=(("dev", "user"), DEV_ROOT),
           why="the bounding set of profile dev holds the seven; a user reaches them by sudo"),
    open_in_dev("usable-capability",
                "grep -E '^Cap(Prm|Eff)' /proc/self/status | grep -qv '0000000000000000'"),
    Attack("more-than-the-seven", f"probe capabilities {DEV_ROOT_CAPABILITIES:x}"),
    Attack("inheritable-set", "grep '^CapInh' /proc/self/status | grep -qv '0000000000000000'"),
    Attack("ambient-set", "grep '^CapAmb' /proc/self/status | grep -qv '0000000000000000'"),
    Attack("no-new-privileges-off", "probe no-new-privileges"),
    # What the seven allow, tried for real.
    open_in_dev("chown", "cp /etc/hostname /tmp/c && chown 1234 /tmp/c && rm -f /tmp/c"),
    open_in_dev("become-another-user", "[ $(id -u) = 0 ] && probe become 1234"),
    Attack("become-root", "[ $(id -u) != 0 ] && probe become 0"),
    Attack("become-outside-the-range", "probe become 70000"),
    open_in_dev("read-what-modes-forbid",
                "rm -rf /tmp/r; mkdir /tmp/r && echo x > /tmp/r/f && chmod 0 /tmp/r/f && cat /tmp/r/f"),
    # What they do not.
    Attack("chroot", "probe call chroot s:/tmp"),
    Attack("chroot-walk", "probe chroot-escape"),
    Attack("bind-mount", "mkdir -p /tmp/m && mount --bind / /tmp/m"),
    Attack("ptrace-init", "probe ptrace 1"),
    Attack("lift-file-limit", "ulimit -Hn $(($(ulimit -Hn) + 1))"),
    Attack("lift-core-limit", "ulimit -Hc 1"),
    Attack("unlock-oom", "echo -1000 > /proc/self/oom_score_adj"),
    Attack("file-capability", "cp /bin/true /tmp/t && setcap cap_net_raw+ep /tmp/t"),
    Attack("handle", "probe handle"),
    Attack("handle-name", "probe call name_to_handle_at -100 s:/ z:8 z:8 0"),
    # Files that change who runs them.
    Attack("set-user-id-file", "probe set-user-id"),
    Attack("mount-allows-suid", "probe mount-without nosuid"),
    Attack("su", "echo | su root -c true </dev/null"),
]
CONTROLS = [
    Control("caps", ("any-capability", "usable-capability", "chown", "become-another-user",
                     "read-what-modes-forbid"), user="root"),
    Control("caps", ("more-than-the-seven",), profile="dev", user="root"),
    Control("seccomp,caps", ("chroot", "chroot-walk"), profile="dev", user="root"),
    Control("nnp", ("no-new-privileges-off",)),
    Control("nosuid", ("mount-allows-suid",)),
    # Two walls stand in front of set-user-id files; both have to go.
    Control("nnp,nosuid", ("set-user-id-file",), profile="dev", user="root"),
]


def needs_su(_):
    works = subprocess.run(["su", "root", "-c", "true"], stdin=subprocess.DEVNULL, check=False,
                           capture_output=True, timeout=paddock.seconds(10)).returncode == 0
    return None if works else "su does not work for the host's root either"


TABLE = Table(ATTACKS, CONTROLS, outside={
    "inheritable-set": "setpriv --inh-caps +chown sh -c {}",
    "ambient-set": "setpriv --inh-caps +chown --ambient-caps +chown sh -c {}",
    "become-root": "setpriv --reuid 1000 --clear-groups --inh-caps +setuid --ambient-caps +setuid"
                   " sh -c {}",
    "lift-file-limit": "ulimit -n 512",
}, exempt={"lift-file-limit": needs_resource, "unlock-oom": needs_resource, "su": needs_su})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


def test_sudo_works_in_profile_dev_and_only_there(fixtures):
    """The seven capabilities have a door: sudo, through init. Strict has none."""
    dev = paddock.run(["sudo", "id", "-u"], profile="dev")
    assert (dev.status, dev.out.strip()) == (0, "0"), dev.explain()
    strict = paddock.run(["sudo", "id", "-u"])
    assert strict.status != 0 and strict.out.strip() != "0", strict.explain()


def test_sudo_gives_the_seven_and_no_more(fixtures):
    result = paddock.run(["sudo", "/opt/attack/probe", "capabilities",
                          f"{DEV_ROOT_CAPABILITIES:x}"], profile="dev", binds=fixtures.binds())
    assert result.status == 1, result.explain()
    result = paddock.run(["sudo", "grep", "-E", "^(NoNewPrivs|Seccomp):", "/proc/self/status"],
                         profile="dev")
    assert result.out.split() == ["NoNewPrivs:", "1", "Seccomp:", "2"], result.explain()
