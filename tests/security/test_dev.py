"""Wall: a minimal /dev with a devpts of its own; no device can be made; no terminal comes along."""

import os

from paddock_testing.battery import Attack, Control, Table

KNOWN = "null|zero|full|random|urandom|tty|ptmx|pts|shm|fd|stdin|stdout|stderr|core|console|mqueue"

ATTACKS = [
    Attack("unknown-entry", f"ls -A /dev | grep -vxE '{KNOWN}' | grep -q ."),
    *(Attack("read-" + name.replace("/", "-"), f"probe read /dev/{name}")
      for name in ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1", "loop0", "zram0", "hwrng",
                   "cpu/0/msr", "cpu/0/cpuid", "nvram", "mcelog", "vcs", "vcsa", "snapshot")),
    *(Attack("open-" + name.replace("/", "-"), f"probe write /dev/{name}")
      for name in ("kvm", "net/tun", "fuse", "vsock", "vhost-net", "vhost-vsock", "loop-control",
                   "userfaultfd", "uinput", "rfkill", "autofs", "btrfs-control", "cpu_dma_latency",
                   "vga_arbiter", "tty0", "ttyS0", "tty1", "watchdog", "sgx_enclave", "ppp",
                   "mapper/control", "dri/card0", "snd/timer", "rtc0")),
    *(Attack("mknod-" + name, f"probe mknod {kind} {major} {minor}") for name, kind, major, minor in (
        ("null", "c", 1, 3), ("mem", "c", 1, 1), ("kmsg", "c", 1, 11), ("whiteout", "c", 0, 0),
        ("disk", "b", 254, 0), ("loop", "b", 7, 0), ("fuse", "c", 10, 229), ("tun", "c", 10, 200),
        ("kvm", "c", 10, 232))),
    Attack("mknod-tool", "mknod /tmp/n c 1 3"),
    Attack("mount-allows-devices", "probe mount-without nodev | grep -vE '^/dev(/| )' | grep -q ."),
    Attack("replace-null", "mv /dev/null /dev/n || rm -f /dev/null"),
    Attack("caller-terminal", "probe controlling-terminal"),
    Attack("caller-terminal-in-pts", "ls /dev/pts | grep -E '^[0-9]+$' | grep -q ."),
    Attack("console", "probe write /dev/console"),
    Attack("shared-shm", "ls -A /dev/shm | grep -q ."),
]


def needs_kmsg(_):
    return None if os.path.exists("/dev/kmsg") else "the host has no /dev/kmsg"


CONTROLS = [
    Control("devs", ("unknown-entry",), needs=needs_kmsg),
    Control("devs", ("unknown-entry",), profile="dev", user="root", needs=needs_kmsg),
    # An overlay whiteout is the one device that an ordinary user may make; the filter stops it.
    Control("seccomp", ("mknod-whiteout",)),
]


# Each node that the table asks for is there, and whatever the caller left in /dev/shm.
NODES = " ".join(a.line.split("/dev/")[1] for a in ATTACKS
                 if a.line.startswith(("probe read /dev/", "probe write /dev/")))
TABLE = Table(ATTACKS, CONTROLS, outside={"shared-shm": "touch /dev/shm/x"}, nodes=NODES)
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


def test_the_usual_devices_work(fixtures):
    """The minimal set is complete: each is there and does what it does."""
    from paddock_testing.run import run_ok
    result = run_ok(["/bin/sh", "-ec", "echo x > /dev/null; head -c 4 /dev/zero | wc -c;"
                     " head -c 8 /dev/urandom | wc -c; test -c /dev/full; test -d /dev/shm;"
                     " (echo x > /dev/full) 2>/dev/null || echo full; test -c /dev/ptmx"])
    assert result.out.split() == ["4", "8", "full"], result.explain()
