"""Wall: a user namespace with host ids of its own, and no way to make or join another."""

import os

import pytest

from paddock_testing.battery import Attack, Control, Table

pytestmark = pytest.mark.usefixtures("as_root")

NEWUSER = 0x10000000

ATTACKS = [
    # A nested user namespace gives all capabilities over kernel code that expects root.
    Attack("unshare-user", f"probe call unshare {NEWUSER}"),
    Attack("clone-user", f"probe call clone {NEWUSER | 17} 0 0 0 0"),
    Attack("clone3", "probe call clone3 z:88 88"),
    Attack("unshare-tool-user", "unshare -U true"),
    Attack("unshare-tool-root", "unshare -Ur true"),
    Attack("unshare-tool-mounts", "unshare -Urm true"),
    Attack("unshare-tool-network", "unshare -Urn true"),
    Attack("unshare-tool-pids", "unshare -Urpf true"),
    # Every other namespace, with and without the user one.
    Attack("unshare-mount", "probe call unshare 0x00020000"),
    Attack("unshare-cgroup", "probe call unshare 0x02000000"),
    Attack("unshare-uts", "probe call unshare 0x04000000"),
    Attack("unshare-ipc", "probe call unshare 0x08000000"),
    Attack("unshare-pid", "probe call unshare 0x20000000"),
    Attack("unshare-net", "probe call unshare 0x40000000"),
    Attack("unshare-time", "probe call unshare 0x00000080"),
    Attack("clone-mount", "probe call clone 0x00020011 0 0 0 0"),
    Attack("clone-net", "probe call clone 0x40000011 0 0 0 0"),
    # Joining: one's own, pid 1's, or by pidfd.
    Attack("setns-own-user", "probe setns /proc/self/ns/user"),
    Attack("setns-own-mount", "probe setns /proc/self/ns/mnt"),
    Attack("setns-init-user", "probe setns /proc/1/ns/user"),
    Attack("setns-init-pid", "probe setns /proc/1/ns/pid"),
    Attack("setns-bare", "probe call setns -1 0"),
    Attack("nsenter-tool", "nsenter -t 1 -a true"),
    # The map: written once, by the builder.
    Attack("write-uid-map", "echo '0 0 1' > /proc/self/uid_map"),
    Attack("write-gid-map", "echo '0 0 1' > /proc/self/gid_map"),
    Attack("write-setgroups", "echo allow > /proc/self/setgroups"),
    Attack("host-ids-in-map", "awk '$2 < 1073741824 {f=1} END {exit !f}' /proc/self/uid_map"),
    Attack("host-groups-in-map", "awk '$2 < 1073741824 {f=1} END {exit !f}' /proc/self/gid_map"),
    # Host files: sandbox root is not the host's.
    Attack("read-host-root-file", "probe read /opt/rw/root-only"),
    Attack("write-host-root-file", "probe write /opt/rw/host-owned"),
    Attack("chmod-host-root-file", "chmod 600 /opt/rw/root-only"),
    Attack("chown-host-root-file", "chown 0 /opt/rw/root-only"),
    Attack("read-root-only-sysctl", "probe read /opt/sysctl/bset"),
    Attack("more-than-one-group", "[ $(id -G | wc -w) -gt 1 ]"),
]

CONTROLS = [
    Control("userns", ("host-ids-in-map", "host-groups-in-map"), user="root"),
    Control("userns", ("host-ids-in-map", "read-root-only-sysctl"), profile="dev", user="root",
            needs=lambda f: None if os.path.exists(f.SYSCTL_DIR + "/bset")
            else "the kernel has no usermodehelper sysctl"),
    Control("seccomp", ("unshare-user", "clone-user", "clone3", "unshare-tool-user",
                        "setns-bare")),
]


TABLE = Table(ATTACKS, CONTROLS, outside={
    "write-uid-map": "unshare -U --keep-caps sh -c {}",
    "write-gid-map": "unshare -U --keep-caps sh -c 'echo deny > /proc/self/setgroups; eval \"$0\"' {}",
    "more-than-one-group": "setpriv --groups 1,2 sh -c {}",
})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


def test_host_files_are_as_they_were(fixtures, as_root):
    """Whatever the attacks above tried: the host's files in a writable bind did not change."""
    st = os.stat(fixtures.world_readable)
    with open(fixtures.world_readable) as f:
        assert f.read() == "as it was"
    assert st.st_uid == 0
