"""Walls: a network namespace with nothing but lo, and an ipc namespace of its own."""

from paddock_testing.battery import DEV_ROOT, KERNEL, Attack, Control, Table

ATTACKS = [
    Attack("host-loopback", "probe connect 127.0.0.1 $HOST_PORT"),
    Attack("host-any-address", "probe connect 0.0.0.0 $HOST_PORT"),
    Attack("host-mapped-address", "probe connect ::ffff:127.0.0.1 $HOST_PORT"),
    Attack("host-abstract-socket", "probe connect-abstract $HOST_ABSTRACT"),
    Attack("metadata-service", "probe route 169.254.169.254"),
    Attack("metadata-service-6", "probe route fd00:ec2::254"),
    Attack("private-gateway", "probe route 10.0.0.1 || probe route 192.168.0.1"
           " || probe route 172.17.0.1"),
    Attack("resolver", "probe route 1.1.1.1 || probe route 8.8.8.8"),
    Attack("devices", "tail -n +3 /proc/net/dev | grep -vE '^ *lo:' | grep -q ."),
    Attack("routes", "tail -n +2 /proc/net/route | grep -q ."),
    Attack("listening-sockets-of-the-host",
           "grep -qi \":$(printf %04X $HOST_PORT) \" /proc/net/tcp"),
    Attack("abstract-sockets-of-the-host", "grep -q @$HOST_ABSTRACT /proc/net/unix"),
    Attack("new-device", "ip link add d0 type dummy || ip link add v0 type veth"),
    Attack("new-address", "ip addr add 10.9.8.7/24 dev lo"),
    Attack("packet-filter", "probe netlink 12"),
    Attack("new-namespace", "ip netns add x"),
    Attack("sockets-of-services", "for s in /var/run/docker.sock /run/docker.sock /run/containerd"
           " /run/dbus/system_bus_socket /run/systemd/private /run/systemd/journal"
           " /run/podman /run/snapd.socket /var/lib/paddock /var/run/nscd; do"
           " [ -e $s ] && exit 0; done; exit 1"),
    Attack("any-named-socket", "find /run /var /tmp /dev -type s | grep -q .",
           open_for=(("dev", "user"), DEV_ROOT), why="sudo of profile dev asks init by a socket"),
    Attack("host-shared-memory", "[ $HOST_SHM_KEY != 0 ] && probe shared-memory $HOST_SHM_KEY"),
    Attack("shared-memory-listing", "tail -n +2 /proc/sysvipc/shm | grep -q ."),
    Attack("queue-listing", "ls -A /dev/mqueue | grep -q ."),
]


def needs_segment(fixtures):
    return None if fixtures.shm_id else "ipcmk is not installed"


CONTROLS = [
    Control("netns", ("host-loopback", "host-any-address", "host-mapped-address",
                      "host-abstract-socket", "listening-sockets-of-the-host",
                      "abstract-sockets-of-the-host")),
    Control("netns", ("host-loopback", "host-abstract-socket"), profile="dev", user="root"),
    Control("ipcns", ("host-shared-memory",), needs=needs_segment),
]


# Routes that lead nowhere: every kernel has lo, and not every one dummy devices.
ROUTES = ("ip addr add 198.51.100.2/24 dev lo && ip route add default via 198.51.100.1 dev lo"
          " && ip addr add fd98::2/64 dev lo && ip -6 route add default dev lo")
TABLE = Table(ATTACKS, CONTROLS, outside={
    **dict.fromkeys(("metadata-service", "metadata-service-6", "private-gateway", "resolver",
                     "routes"), ROUTES),
    "devices": "ip link add d0 type dummy || ip link add d0 type veth || ip link add d0 type ifb",
    "sockets-of-services": "mkdir -p /run/systemd && touch /run/systemd/private",
    "any-named-socket": "mkdir -p /run/log && python3 -c 'import socket;"
                        " socket.socket(socket.AF_UNIX).bind(\"/run/log/s\")'",
    "queue-listing": "touch /dev/mqueue/x",
}, exempt={"shared-memory-listing": needs_segment, "packet-filter": KERNEL})
(test_attack_is_denied, test_attack_works_without_the_wall,
 test_attack_works_outside) = TABLE.tests()


def test_loopback_of_the_sandbox_works(fixtures):
    """lo is up: a server and a client inside find each other."""
    from paddock_testing.run import run_ok
    run_ok(["/usr/bin/python3", "-c",
            "import socket; s = socket.create_server(('127.0.0.1', 0));"
            "c = socket.create_connection(s.getsockname(), 2); print('met')"])


def test_network_host_is_what_it_says(fixtures):
    """--network host opens the way that is closed by default: the test above can fail."""
    from paddock_testing.run import run_ok
    run_ok(["/opt/attack/probe", "connect", "127.0.0.1", fixtures.port], network="host",
           binds=fixtures.binds())
