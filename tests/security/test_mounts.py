"""Wall: the mounts. They cannot be changed, the base cannot be written, the host cannot be seen."""

import os
from pathlib import Path

import pytest

from paddock_testing import run as paddock
from paddock_testing.battery import KERNEL, Attack, Control, Table, needs_file

ATTACKS = [
    Attack("bind", "mkdir -p /tmp/m && mount --bind / /tmp/m"),
    Attack("remount-base-writable", "mount -o remount,bind,rw /usr"),
    Attack("remount-root-suid", "mount -o remount,suid,dev /"),
    Attack("mount-tmpfs", "mkdir -p /tmp/m && mount -t tmpfs t /tmp/m"),
    Attack("mount-sysfs", "mkdir -p /tmp/m && mount -t sysfs s /tmp/m"),
    Attack("mount-cgroup-v1", "mkdir -p /tmp/m && mount -t cgroup -o memory c /tmp/m"),
    Attack("mount-cgroup-v1-rdma", "mkdir -p /tmp/m && mount -t cgroup -o rdma c /tmp/m"),
    Attack("mount-cgroup-v2", "mkdir -p /tmp/m && mount -t cgroup2 c /tmp/m"),
    Attack("mount-overlay", "mkdir -p /tmp/u /tmp/w /tmp/m && mount -t overlay o -o"
           " lowerdir=/usr,upperdir=/tmp/u,workdir=/tmp/w /tmp/m"),
    Attack("mount-devpts", "mkdir -p /tmp/m && mount -t devpts d /tmp/m"),
    Attack("mount-binfmt", "mkdir -p /tmp/m && mount -t binfmt_misc b /tmp/m"),
    Attack("mount-debugfs", "mkdir -p /tmp/m && mount -t debugfs d /tmp/m"),
    Attack("call-mount", "probe call mount s:none s:/tmp s:tmpfs 0 0"),
    Attack("call-umount", "probe call umount2 s:/proc 2"),
    Attack("call-umount-root", "probe call umount2 s:/ 2"),
    Attack("call-open-tree", "probe call open_tree -100 s:/ 0"),
    Attack("call-open-tree-clone", "probe call open_tree -100 s:/ 1"),
    Attack("call-move-mount", "probe call move_mount -1 s: -100 s:/tmp 4"),
    Attack("call-fsopen", "probe call fsopen s:tmpfs 0"),
    Attack("call-fspick", "probe call fspick -100 s:/ 0"),
    Attack("call-fsmount", "probe call fsmount -1 0 0"),
    Attack("call-fsconfig", "probe call fsconfig -1 0 0 0 0"),
    Attack("call-mount-setattr", "probe call mount_setattr -100 s:/ 0 z:32 32"),
    Attack("call-pivot-root", "probe call pivot_root s:/ s:/tmp"),
    Attack("call-statmount", "probe call 457 z:64 z:64 64 0"),
    Attack("call-listmount", "probe call 458 z:64 z:64 8 0"),
    # The base is read-only for everybody, whatever the modes say.
    Attack("write-usr", "touch /usr/x"),
    Attack("write-usr-bin", "touch /usr/bin/x || cp /bin/true /usr/bin/id"),
    Attack("write-lib", "touch /lib/x || touch /lib64/x || touch /usr/lib/x"),
    Attack("write-through-proc-exe", "probe exe-write /usr/bin/cat"),
    Attack("write-shared-program", "probe write /usr/bin/cat"),
    Attack("write-read-only-bind", "touch /opt/attack/x || probe write /opt/attack/probe"),
    Attack("hard-link-of-the-base", "ln /usr/bin/env /usr/bin/env2 || ln /usr/bin/env /tmp/env"),
    # Host paths that must not be there.
    Attack("see-host-root-home", "ls -A /root | grep -vE '^\\.(bashrc|profile|cache)$' | grep -q ."),
    Attack("see-host-shadow", "grep -qE '^[^:]+:\\$' /etc/shadow"),
    Attack("see-host-keys", "ls /etc/ssh/ssh_host_* /etc/ssl/private/* | grep -q ."),
    Attack("see-host-home", "ls -A /home | grep -vx user | grep -q ."),
    Attack("see-host-var", "ls /var/lib/dpkg/status /var/log/dpkg.log /var/lib/apt | grep -q ."),
    Attack("see-host-boot", "ls -A /boot | grep -q ."),
    Attack("see-host-machine-id", "[ -s /etc/machine-id ] || [ -s /var/lib/dbus/machine-id ]"),
    Attack("old-root-left", "ls -d /oldroot /.oldroot /put_old /.pivot_root* | grep -q ."),
    Attack("dot-dot-out-of-root", "[ \"$(stat -c %d:%i /..)\" != \"$(stat -c %d:%i /)\" ]"),
    # Attributes by which overlayfs believes what it is told.
    Attack("trusted-attribute", "probe xattr trusted.overlay.redirect"),
    Attack("security-attribute", "probe xattr security.capability"),
    Attack("core-file", "cd /tmp && ulimit -c unlimited && sh -c 'kill -SEGV $$'; ls /tmp/core*"),
]

CONTROLS = [
    # Mounting itself cannot be shown: the mount namespace belongs to the host's user namespace, and
    # is there in every build. What the filter alone keeps shut is what needs no privilege.
    Control("seccomp", ("call-open-tree",)),
    Control("seccomp", ("call-fsconfig",), profile="dev", user="root"),
]


def needs_v1_memory(_):
    mounted = any(line.split()[2] == "cgroup" and "memory" in line.split()[3].split(",")
                  for line in Path("/proc/mounts").read_text().splitlines())
    return None if mounted else "the memory controller is in the host's tree of version 2"


def needs_core_in_place(_):
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    return f"the host's core_pattern is {pattern}" if pattern[:1] in "|/" else None


TABLE = Table(ATTACKS, CONTROLS, outside={
    "remount-base-writable": "mount --bind /usr /usr && mount -o remount,bind,ro /usr",
    "see-host-shadow": "echo 'somebody:$y$x:1::::::' >> /etc/shadow",
    "see-host-keys": "mkdir -p /etc/ssh && touch /etc/ssh/ssh_host_rsa_key",
    "see-host-root-home": "touch /root/.ssh-key",
    "see-host-home": "mkdir -p /home/somebody",
    "see-host-var": "mkdir -p /var/lib/apt",
    "see-host-boot": "mkdir -p /boot && touch /boot/vmlinuz",
    "see-host-machine-id": "echo 0123 > /etc/machine-id",
    "old-root-left": "mkdir /oldroot",
    "dot-dot-out-of-root": "mount -t tmpfs t /",
}, exempt={
    "mount-cgroup-v1": needs_v1_memory,
    "mount-cgroup-v1-rdma": "it would take a controller from the tree that the host uses",
    "mount-binfmt": needs_file("/proc/sys/fs/binfmt_misc"),
    "call-statmount": KERNEL,
    "call-listmount": KERNEL,
    "core-file": needs_core_in_place,
})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


def test_symlinks_in_a_root_do_not_lead_out(fixtures, tmp_path, as_root):
    """--root DIR whose /etc, /dev, /proc and /tmp are symlinks to places of the host."""
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    os.chmod(tmp_path, 0o755)
    for name in ("proc", "dev", "tmp", "etc", "sys", "run", "workspace"):
        (root / name).symlink_to(outside)
    (root / "bin").mkdir()
    os.symlink("/opt/attack/probe", root / "bin" / "sh")
    result = paddock.run(["/opt/attack/probe", "write", str(outside)], root=root,
                         binds=fixtures.binds())
    assert list(outside.iterdir()) == [], f"written to the host\n{result.explain()}"
    assert not os.path.ismount(outside)
    assert result.status in (1, 125), result.explain()


def test_a_bind_target_behind_a_symlink_stays_inside(fixtures, tmp_path, as_root):
    """The target of a bind is a path of the sandbox: links in the root must not move it out."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    os.chmod(tmp_path, 0o755)
    (root / "opt" / "attack").symlink_to(outside / "deep")
    result = paddock.run(["/opt/attack/probe", "is-root"], root=root, binds=fixtures.binds())
    assert not os.path.ismount(outside / "deep"), result.explain()
    assert list((outside / "deep").iterdir()) == [], result.explain()


@pytest.mark.parametrize("where", ["/proc/self/fd/3", "/proc/self/fd/10", "/proc/1/cwd",
                                   "/proc/1/root", "/tmp/../../../.."])
def test_workdir_is_never_outside(fixtures, where):
    """A working directory that leaks from the builder would be a door to the host."""
    result = paddock.run(["/bin/sh", "-c", "ls -d ../../../../../../etc/hostname >/dev/null;"
                          " cat ../../../../../../etc/hostname; /bin/pwd -P"], workdir=where,
                         binds=fixtures.binds())
    host_name = Path("/etc/hostname")
    if host_name.exists() and host_name.read_text().strip() != "sandbox":
        assert host_name.read_text().strip() not in result.out.split(), result.explain()
    assert "(unreachable)" not in result.out, result.explain()


def test_the_base_is_the_same_for_the_next(fixtures):
    """What one sandbox writes anywhere is not in the next one."""
    paddock.run(["/bin/sh", "-c", "for d in / /etc /tmp /var /home/user /workspace /root /opt; do"
                 " echo x > $d/left-behind; done; true"], user="root", profile="dev")
    result = paddock.run(["find", "/", "-xdev", "-name", "left-behind"], user="root", profile="dev")
    assert "left-behind" not in result.out, result.explain()
