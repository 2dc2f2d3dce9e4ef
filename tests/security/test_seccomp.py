"""Wall: the seccomp allow-list. Each row is kernel code that nothing in a sandbox needs."""

import os
import platform

import pytest

from paddock_testing.battery import KERNEL, Attack, Control, Table, has_i386

X86 = platform.machine() == "x86_64"
OF_X86 = [
    Attack("modify-ldt", "probe call modify_ldt 0 z:64 64"),
    Attack("iopl", "probe call iopl 3"),
    Attack("ioperm", "probe call ioperm 0x80 1 1"),
    Attack("kexec-file", "probe call kexec_file_load -1 -1 0 0 0"),
    Attack("ustat", "probe call ustat 0 z:64"),
    Attack("sysfs", "probe call sysfs 3"),
    # Other instruction sets have other numbers for the same calls.
    Attack("i386-entry", "probe i386"),
    Attack("x32-alias", "probe x32"),
] if X86 else []

ATTACKS = [
    *OF_X86,
    Attack("filter-missing", "probe seccomp-off"),
    Attack("filter-missing-in-status", "grep -q '^Seccomp:.*[01]$' /proc/self/status"),
    # Subsystems with a record of kernel bugs.
    Attack("io-uring-setup", "probe call io_uring_setup 4 z:120"),
    Attack("io-uring-enter", "probe call io_uring_enter -1 0 0 0 0 0"),
    Attack("io-uring-register", "probe call io_uring_register -1 0 0 0"),
    Attack("bpf-map", "probe call bpf 0 z:128 128"),
    Attack("bpf-program", "probe call bpf 5 z:128 128"),
    Attack("userfaultfd", "probe call userfaultfd 0"),
    Attack("userfaultfd-user-only", "probe call userfaultfd 1"),
    Attack("perf", "probe perf"),
    Attack("fanotify", "probe call fanotify_init 0 0"),
    Attack("fanotify-unprivileged", "probe call fanotify_init 0x200 0"),
    Attack("memfd-secret", "probe call memfd_secret 0"),
    Attack("quotactl", "probe call quotactl 0x800001 0 0 0"),
    Attack("lookup-dcookie", "probe call lookup_dcookie 0 0 0"),
    Attack("kcmp", "probe call kcmp 1 1 0 0 0"),
    Attack("mbind", "probe call mbind 0 0 99 0 0 0"),
    Attack("migrate-pages", "probe call migrate_pages 1 0 0 0"),
    Attack("move-pages", "probe call move_pages 1 0 0 0 0 0"),
    Attack("personality-read-implies-exec", "probe call personality 0x0400000"),
    # Keyrings are shared by all sandboxes of a uid and by none of the namespaces.
    Attack("keyctl-get", "probe call keyctl 0 -3 1"),
    Attack("keyctl-join-session", "probe call keyctl 1 0"),
    Attack("add-key", "probe call add_key s:user s:k s:x 1 -2"),
    Attack("request-key", "probe call request_key s:user s:k 0 0"),
    # The machine as a whole.
    Attack("kexec", "probe call kexec_load 0 99999 0 0"),
    Attack("init-module", "probe call init_module 0 0 s:"),
    Attack("finit-module", "probe call finit_module -1 s: 0"),
    Attack("delete-module", "probe call delete_module s:nosuchmodule 0"),
    Attack("reboot", "probe call reboot 1 2 3 0"),
    Attack("swapon", "probe call swapon s:/nowhere 0"),
    Attack("swapoff", "probe call swapoff s:/nowhere"),
    Attack("acct", "probe call acct s:/nowhere"),
    Attack("syslog-read", "probe call syslog 3 z:64 64"),
    Attack("syslog-size", "probe call syslog 10 0 0"),
    Attack("settimeofday", "probe call settimeofday 0 0"),
    Attack("clock-settime", "probe call clock_settime 99 z:16"),
    Attack("clock-adjtime", "probe call clock_adjtime 99 z:208"),
    Attack("sethostname", "probe call sethostname s:x 1"),
    Attack("setdomainname", "probe call setdomainname s:x 1"),
    Attack("vhangup", "probe call vhangup"),
    Attack("set-scheduler", "probe realtime"),
    Attack("nice", "probe nice"),
    # Other processes by other ways than signals.
    Attack("process-vm-readv-init", "probe call process_vm_readv 1 0 0 0 0 0"),
    Attack("process-vm-writev-init", "probe call process_vm_writev 1 0 0 0 0 0"),
    Attack("pidfd-getfd", "probe call pidfd_getfd -1 0 0"),
    Attack("process-madvise", "probe call process_madvise -1 0 0 0 0"),
    # Two futex operations without a user but with a history.
    Attack("futex-wait-requeue-pi", "probe call futex z:4 11 1 0 z:4 0"),
    Attack("futex-cmp-requeue-pi", "probe call futex z:4 12 1 1 z:4 0"),
    # Injecting input into the terminal of whoever called; bit 32 must not hide it.
    Attack("tiocsti", "probe terminal 0x5412"),
    Attack("tiocsti-high-bits", "probe terminal 0x100005412"),
    Attack("tioclinux", "probe terminal 0x541C"),
    Attack("tioclinux-high-bits", "probe terminal 0x10000541C"),
    # Socket families: nothing but INET, INET6, UNIX and NETLINK_ROUTE.
    Attack("af-vsock-stream", "probe call socket 40 1 0"),
    Attack("af-vsock-datagram", "probe call socket 40 2 0"),
    Attack("af-alg", "probe call socket 38 5 0"),
    Attack("af-packet", "probe call socket 17 3 0"),
    Attack("af-packet-datagram", "probe call socket 17 2 0"),
    Attack("af-key", "probe call socket 15 3 2"),
    Attack("af-bluetooth", "probe call socket 31 3 1"),
    Attack("af-can", "probe call socket 29 3 1"),
    Attack("af-tipc", "probe call socket 30 2 0"),
    Attack("af-rxrpc", "probe call socket 33 2 2"),
    Attack("af-rds", "probe call socket 21 5 0"),
    Attack("af-xdp", "probe call socket 44 3 0"),
    Attack("af-kcm", "probe call socket 41 2 0"),
    Attack("af-smc", "probe call socket 43 1 0"),
    Attack("af-qipcrtr", "probe call socket 42 2 0"),
    Attack("af-nfc", "probe call socket 39 2 0"),
    Attack("af-llc", "probe call socket 26 2 0"),
    Attack("af-x25", "probe call socket 9 5 0"),
    Attack("af-ax25", "probe call socket 3 5 0"),
    Attack("af-appletalk", "probe call socket 5 2 0"),
    Attack("af-family-high-bits", "probe call socket 0x100000028 1 0"),
    Attack("netlink-not-route", "probe netlink 1 2 4 5 6 7 9 10 11 12 14 15 16 18 19 20 21"),
    Attack("raw-inet", "probe call socket 2 3 1"),
    Attack("raw-inet6", "probe call socket 10 3 58"),
    Attack("mptcp", "probe call socket 2 1 262"),
    Attack("sctp", "probe call socket 2 1 132"),
    Attack("dccp", "probe call socket 2 6 33"),
    Attack("udplite", "probe call socket 2 2 136"),
    Attack("kernel-tls", "probe tcp-option 31 tls"),
    Attack("numbers-of-the-future", "probe call 600 0 0 0"),
]


def needs_i386(_):
    return None if has_i386() else "this machine has no 32-bit entry"


def needs_vsock(_):
    import socket
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as error:
        return f"AF_VSOCK: {error.strerror}"
    return None


def needs_alg(_):
    import socket
    try:
        socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()
    except OSError as error:
        return f"AF_ALG: {error.strerror}"
    return None


def needs_legacy_tiocsti(_):
    path = "/proc/sys/dev/tty/legacy_tiocsti"
    if os.path.exists(path):
        with open(path) as f:
            if f.read().strip() == "0":
                return "dev.tty.legacy_tiocsti is 0"
    return None


def needs_io_uring(_):
    path = "/proc/sys/kernel/io_uring_disabled"
    if os.path.exists(path):
        with open(path) as f:
            if f.read().strip() != "0":
                return "kernel.io_uring_disabled is set"
    return None


CONTROLS = [
    Control("seccomp", ("filter-missing", "filter-missing-in-status", "keyctl-get", "add-key",
                        "mptcp", "pidfd-getfd",
                        "netlink-not-route", "futex-wait-requeue-pi")),
    Control("seccomp", ("io-uring-setup",), profile="dev", needs=needs_io_uring),
    *([Control("seccomp", ("modify-ldt",)),
       Control("seccomp", ("i386-entry",), user="root", needs=needs_i386)] if X86 else []),
    Control("seccomp", ("af-vsock-stream", "af-family-high-bits"), profile="dev", user="root",
            needs=needs_vsock),
    Control("seccomp", ("af-alg",), needs=needs_alg),
    Control("seccomp", ("tiocsti", "tiocsti-high-bits"), user="root", needs=needs_legacy_tiocsti),
    # Packet and raw sockets, host names and mounts cannot be shown: these namespaces belong to the
    # host's user namespace, so even all capabilities inside are none over them.
]


TABLE = Table(ATTACKS, CONTROLS, exempt={
    **{a.id: KERNEL for a in ATTACKS if a.line.startswith("probe call ")},
    "kernel-tls": KERNEL,
    **({"x32-alias": KERNEL, "i386-entry": needs_i386} if X86 else {}),
    "tiocsti": needs_legacy_tiocsti,
    "tiocsti-high-bits": needs_legacy_tiocsti,
    "numbers-of-the-future": "no kernel has it yet",
})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


def test_filter_lets_ordinary_programs_work(fixtures):
    """The other side of the coin: threads, pipes, sockets, timers of an interpreter."""
    from paddock_testing.run import run_ok
    result = run_ok(["/bin/sh", "-c", "echo a | tr a b; (sleep 0 & wait); ls / | wc -l; date"])
    assert result.out.startswith("b\n")


def test_the_foreign_entry_kills_and_the_reason_is_told(fixtures):
    """A 32-bit call on a 64-bit machine ends the process; the record says what stopped it."""
    reason = needs_i386(fixtures)
    if reason:
        pytest.skip(reason)
    from paddock_testing.run import run_record
    result = run_record(["/opt/attack/probe", "i386"], binds=fixtures.binds())
    assert result.record["signal"] in ("SIGSYS", 31), result.explain()
    assert result.record["stopped_by"] == "syscall", result.explain()
