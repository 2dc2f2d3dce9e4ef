"""Wall: /proc shows the sandbox and nothing of the machine; there is no /sys."""

import os

from paddock_testing.battery import KERNEL, Attack, Control, Table, needs_file

READS = ("kcore", "keys", "key-users", "kmsg", "config.gz", "kallsyms", "timer_list", "sched_debug",
         "slabinfo", "kpagecount", "kpageflags", "kpagecgroup", "vmallocinfo", "pagetypeinfo",
         "iomem", "ioports", "interrupts", "mtrr", "latency_stats", "timer_stats", "scsi/scsi",
         "acpi/wakeup", "asound/version", "modules", "driver/rtc", "bus/pci/devices",
         "sysvipc/../kcore", "diskstats", "locks")
WRITES = ("sysrq-trigger", "sys/kernel/modprobe", "sys/kernel/core_pattern", "sys/kernel/hotplug",
          "sys/kernel/poweroff_cmd", "sys/kernel/sysrq", "sys/kernel/panic", "sys/vm/drop_caches",
          "sys/vm/panic_on_oom", "sys/vm/overcommit_memory", "sys/fs/binfmt_misc/register",
          "sys/fs/suid_dumpable", "sys/fs/file-max", "sys/net/core/bpf_jit_enable",
          "sys/net/ipv4/ip_forward", "sys/net/core/somaxconn", "sys/kernel/hostname",
          "sys/kernel/domainname", "sys/kernel/shmmax", "sys/kernel/msgmax",
          "sys/kernel/ns_last_pid", "sys/kernel/randomize_va_space", "sys/kernel/yama/ptrace_scope",
          "sys/kernel/keys/maxkeys", "sys/kernel/unprivileged_bpf_disabled",
          "sys/user/max_user_namespaces", "sys/fs/inotify/max_user_instances", "irq/0/smp_affinity",
          "irq/default_smp_affinity", "mtrr", "bus/pci/00/00.0", "acpi/wakeup", "timer_stats",
          "pressure/memory")

ATTACKS = [
    *(Attack("read-" + name.replace("/", "-"), f"probe read /proc/{name}") for name in READS),
    *(Attack("write-" + name.replace("/", "-"), f"probe write /proc/{name}") for name in WRITES),
    Attack("write-affinity-of-any-interrupt",
           "for f in /proc/irq/*/smp_affinity; do probe write $f && exit 0; done; exit 1"),
    # Kernel addresses and the machine's identity.
    Attack("kernel-symbols", "grep -qv '^0* ' /proc/kallsyms"),
    Attack("host-command-line", "grep -q . /proc/cmdline"),
    Attack("own-kernel-stack", "grep -q . /proc/self/stack"),
    Attack("dmi-tables", "probe read /sys/firmware/dmi/tables/DMI || ls /sys/class/dmi/id/* | grep -q ."),
    Attack("uevent-helper", "probe write /sys/kernel/uevent_helper"),
    Attack("sys-anything", "ls -A /sys | grep -q ."),
    Attack("sys-power", "probe write /sys/power/state"),
    Attack("sys-debug", "ls -A /sys/kernel/debug | grep -q ."),
    Attack("efi-variables", "ls -A /sys/firmware/efi/efivars | grep -q ."),
    Attack("cgroup-files", "find /sys/fs/cgroup -type f | grep -q ."),
    Attack("cgroup-path", "grep -q paddock /proc/self/cgroup"),
    Attack("cgroup-path-of-init", "grep -q paddock /proc/1/cgroup"),
    # Other processes of the host, and the way out through magic links.
    Attack("foreign-processes", "[ $(ls /proc | grep -c '^[0-9]') -gt 12 ]"),
    Attack("thread-of-the-kernel",
           "grep -lE '^(Kthread:.1|Name:.kthreadd)' /proc/[0-9]*/status | grep -q ."),
    Attack("init-other-root", "probe other-root"),
    Attack("init-root-listing", "ls /proc/1/root/etc | grep -q ."),
    Attack("init-cwd-listing", "ls /proc/1/cwd/ | grep -q ."),
    Attack("mask-is-replaceable", "mv /proc/keys /proc/x || rm /proc/keys || umount /proc/keys"),
    Attack("second-proc", "mkdir -p /tmp/p && mount -t proc p /tmp/p"),
    Attack("hostname-of-the-host", '[ "$(uname -n)" = "$HOST_NAME" ]'),
    # The boot id tells which machine this is, and that two sandboxes are on the same one.
    Attack("boot-id-of-the-host",
           '[ "$(cat /proc/sys/kernel/random/boot_id)" = "$HOST_BOOT_ID" ]'),
    Attack("boot-id-is-replaceable",
           "B=/proc/sys/kernel/random/boot_id; chmod 666 $B || echo x > $B || umount $B || "
           "mv $B /tmp/b || rm $B"),
    Attack("oom-score-of-init", "echo 1000 > /proc/1/oom_score_adj"),
]


def needs_other_name(_):
    return "the host is called as sandboxes are" if os.uname().nodename == "sandbox" else None


def host_file(*names):
    def needs(_):
        missing = [n for n in names if not os.path.exists(n)]
        return f"{missing[0]} is not in this kernel" if missing else None
    return needs


CONTROLS = [
    Control("procmask", ("read-kallsyms",), needs=host_file("/proc/kallsyms")),
    Control("procmask", ("read-config.gz",), profile="dev", needs=host_file("/proc/config.gz")),
    Control("procmask", ("read-interrupts", "host-command-line"), user="root"),
    # Single files also have the kernel's own permission check; /proc/sys needs real root.
    Control("procmask,userns", ("read-keys", "write-sys-kernel-core_pattern",
                                "write-sys-vm-drop_caches"), user="root",
            needs=host_file("/proc/keys")),
    # Visible in the host's own network namespace alone.
    Control("procmask,userns,netns", ("write-sys-net-core-bpf_jit_enable",), user="root",
            needs=host_file("/proc/sys/net/core/bpf_jit_enable")),
    Control("procmask", ("boot-id-of-the-host",)),
    Control("cgroupns", ("cgroup-path", "cgroup-path-of-init")),
    Control("utsns", ("hostname-of-the-host",), needs=needs_other_name),
]


OTHER_ROOT = ("mkdir -p /tmp/c/usr /tmp/c/proc /tmp/c/opt && for d in bin lib lib64; do"
              " ln -s usr/$d /tmp/c/$d; done; for d in usr proc opt; do"
              " mount --rbind /$d /tmp/c/$d; done; chroot /tmp/c /bin/sh -c {}")
TABLE = Table(ATTACKS, CONTROLS, outside={
    "write-sys-user-max_user_namespaces": "unshare -Ur sh -c {}",
    "sys-debug": "mount -t debugfs d /sys/kernel/debug",
    "foreign-processes": "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13; do sleep 60 & done",
    "thread-of-the-kernel": "mount --bind /opt/proc /proc",
    "init-other-root": OTHER_ROOT,
    "mask-is-replaceable": "mount --bind /dev/null /proc/keys",
    "boot-id-is-replaceable": "mount --bind /etc/hostname /proc/sys/kernel/random/boot_id",
}, exempt={
    **{a.id: KERNEL for a in ATTACKS if a.line.startswith(("probe read /proc/", "probe write /proc/"))},
    "uevent-helper": KERNEL,
    "sys-power": KERNEL,
    "dmi-tables": needs_file("/sys/class/dmi/id"),
    "efi-variables": needs_file("/sys/firmware/efi/efivars"),
    "mask-is-replaceable": needs_file("/proc/keys"),
    "kernel-symbols": needs_file("/proc/kallsyms"),
    "own-kernel-stack": needs_file("/proc/self/stack"),
})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()
