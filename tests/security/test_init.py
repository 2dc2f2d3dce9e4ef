"""Wall: init is out of reach. It has another uid than user code, is not dumpable, holds nothing."""

import pytest

from paddock_testing import run as paddock
from paddock_testing.battery import COMBINATIONS, DEV_ROOT, KERNEL, Attack, Control, Table

CAP_KILL = "sandbox root has KILL over its own namespace in profile dev; the kernel shields pid 1"

ATTACKS = [
    Attack("ptrace", "probe ptrace 1"),
    Attack("ptrace-attach", "probe call ptrace 16 1 0 0"),
    Attack("memory", "probe mem 1"),
    Attack("vm-read", "probe call process_vm_readv 1 0 0 0 0 0"),
    Attack("vm-write", "probe call process_vm_writev 1 0 0 0 0 0"),
    Attack("environment", "probe read /proc/1/environ"),
    Attack("secrets-in-environment",
           "tr '\\0' '\\n' < /proc/1/environ | grep -qiE 'key|token|secret|passw|paddock'"),
    Attack("descriptors", "ls /proc/1/fd | grep -q ."),
    Attack("descriptor-info", "ls /proc/1/fdinfo | grep -q . && cat /proc/1/fdinfo/*"),
    Attack("maps", "probe read /proc/1/maps"),
    Attack("map-files", "ls /proc/1/map_files | grep -q ."),
    Attack("auxv", "probe read /proc/1/auxv"),
    Attack("stack", "probe read /proc/1/stack"),
    Attack("syscall", "probe read /proc/1/syscall"),
    Attack("root-link", "readlink /proc/1/root"),
    Attack("exe-link", "readlink /proc/1/exe"),
    Attack("cwd-link", "readlink /proc/1/cwd"),
    Attack("executable-handle", "probe path /proc/1/exe"),
    Attack("executable-read", "probe read /proc/1/exe"),
    Attack("clear-refs", "probe write /proc/1/clear_refs"),
    Attack("coredump-filter", "echo 0 > /proc/1/coredump_filter"),
    Attack("oom-score", "echo 1000 > /proc/1/oom_score_adj"),
    Attack("limits-of-another", "probe prlimit 1"),
    Attack("pidfd-descriptor", "probe call pidfd_getfd -1 0 0"),
    Attack("kcmp", "probe call kcmp 1 1 0 0 0"),
    Attack("dumpable", "probe dumpable 1"),
    Attack("signal", "kill -0 1", open_for=(DEV_ROOT,), why=CAP_KILL),
    Attack("scheduler-of-init", "probe call setpriority 0 1 19"),
    Attack("abstract-control-socket", "grep -E '@.*paddock' /proc/net/unix"),
    Attack("tracing-a-sibling-of-another-user", "for p in /proc/[0-9]*; do"
           " u=$(awk '/^Uid/{print $2}' $p/status); [ \"$u\" != $(id -u) ] &&"
           " probe ptrace ${p#/proc/} && exit 0; done; exit 1"),
]

CONTROLS = [
    Control("initid", ("signal",)),
    # With another uid, the kernel itself makes init undumpable when its first child changes uid.
    # Its memory stays shut even so, because it has capabilities that its children lack; the
    # rootless tests, where it has none, show what this wall is good for.
    Control("initid,dumpable", ("dumpable", "signal")),
]


TABLE = Table(ATTACKS, CONTROLS, outside={
    "abstract-control-socket":
        "python3 -c 'import socket, subprocess, sys; s = socket.socket(socket.AF_UNIX);"
        " s.bind(\"\\0paddock-control\"); sys.exit(subprocess.call([\"sh\", \"-c\", sys.argv[1]]))' {}",
    "tracing-a-sibling-of-another-user": "setpriv --reuid 1000 --clear-groups sleep 60 &"
        " until grep -q '^Uid:.1000' /proc/$!/status; do :; done",
}, exempt={"stack": KERNEL, "syscall": KERNEL})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


SIGNALS = ("TERM", "INT", "HUP", "QUIT", "STOP", "KILL", "SEGV", "CHLD", "USR1", "PIPE", "ALRM")


@pytest.mark.parametrize("profile,user", COMBINATIONS)
def test_init_survives_every_signal(fixtures, profile, user):
    """Whoever may signal init: it neither dies nor stops, and the command ends as usual."""
    shots = "; ".join(f"kill -{s} 1 2>/dev/null" for s in SIGNALS)
    result = paddock.run(["/bin/sh", "-c", f"{shots}; sleep 0.1; {shots}; (true & wait); exit 7"],
                         profile=profile, user=user)
    assert result.status == 7, result.explain()


@pytest.mark.parametrize("profile,user", COMBINATIONS)
def test_killing_everybody_ends_only_the_sandbox(fixtures, profile, user):
    """kill -9 -1 takes the command; its jail ends with a status, and the next one works."""
    result = paddock.run(["/bin/sh", "-c", "(sleep 600 &); kill -STOP 1; kill -9 -1; kill -9 $$"],
                         profile=profile, user=user, limit=10)
    assert result.status == 137, result.explain()
    assert paddock.run(["/bin/true"]).status == 0


def test_orphans_are_reaped(fixtures):
    """Processes whose parent went away become init's, and it waits for them: init and the shell, which
    looks itself, are all that is left."""
    result = paddock.run(["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 0' &) ; done; n=0;"
                          " while set -- /proc/[0-9]*; [ $# -gt 2 ] && [ $n -lt 150 ]; do"
                          " n=$((n + 1)); sleep 0.1; done; echo $#"])
    assert result.out.strip() == "2", result.explain()
