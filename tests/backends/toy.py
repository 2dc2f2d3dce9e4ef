#!/usr/bin/python3
"""A backend to learn from: the program of provider `toy`. docs/backends.md, "Write your own", is its guide.

A box is a handful of namespaces (mount, pid, network, ipc, uts) that unshare(1) makes. Its root is a tmpfs
with the machine's /usr and /etc, read-only; it has as much room as the sandbox may have, and goes away with
the last process. It shows the seam and guards nobody: nothing filters system calls or maps users, and
processor and number of processes have no limit.

A keeper starts several of these, as `toy.py broker toy --instance ID --state DIR --owner UID`, with its socket
as descriptor 3 and the program init as descriptor 4, and kills them when they are late. So a broker remembers
nothing: a box is a directory, STATE/boxes/INSTANCE/NAME, and a cgroup (v2), toy-INSTANCE-NAME.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

# ---- the wire: src/wire/frame.h, msg.h, codec.h; base/err.h has the codes of errors ----

HEAD = struct.Struct("=IHHIIQ16s")  # magic, type, descriptors, length, flags, epoch, id
MAGIC = 0x314B4450
ERROR, DONE, BUILD, BUILT, SWEEP, STRIKE, ADOPT = 1, 2, 20, 21, 23, 24, 39
INTERNAL, UNSUPPORTED, ISOLATION = 0, 15, 16
STRICT, NO_NETWORK, RUNG_NONE = 0, 0, 0


class Refused(Exception):
    """What a spec asks for and there is not, with the code of the answer."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def numbers(self, layout):
        values = struct.unpack_from("=" + layout, self.data, self.at)
        self.at += struct.calcsize("=" + layout)
        return values

    def text(self):
        length, = self.numbers("I")
        self.at += length + 1
        return self.data[self.at - length - 1:self.at - 1].decode()


def send(sock, kind, request=bytes(16), payload=b"", fds=()):
    head = HEAD.pack(MAGIC, kind, len(fds), len(payload), 0, 0, request)
    socket.send_fds(sock, [head + payload], fds)


# ---- where boxes are ----


def lock(path, how):
    """A descriptor with the lock of the directory that is there now; None: there is none, or it is locked."""
    fd = None
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, how)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    if fd is not None:
        os.close(fd)


def hold(boxes):
    """Makes the directory of this keeper's boxes. Each of its brokers has a shared lock on it: whoever gets the
    lock alone knows that the keeper and all its brokers are gone."""
    while True:
        boxes.mkdir(mode=0o711, parents=True, exist_ok=True)
        if lock(boxes, fcntl.LOCK_SH) is not None:  # somebody may have taken it for a dead one's
            return


def remove_all(boxes):
    """Also while other brokers do the same."""
    with contextlib.suppress(FileNotFoundError):
        for box in boxes.iterdir():
            end_box(box)
    shutil.rmtree(boxes, ignore_errors=True)


def remove_dead(everybodys):
    """What keepers have left that were killed together with all their brokers."""
    for boxes in everybodys.iterdir():
        if (fd := lock(boxes, fcntl.LOCK_EX | fcntl.LOCK_NB)) is not None:
            remove_all(boxes)
            os.close(fd)


def group_of(box):
    """The directory of its cgroup."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    tree = next((m[1] for m in mounts if m[2] == "cgroup2"), None)
    if not tree:
        raise Refused(UNSUPPORTED, "provider toy needs cgroups v2: mount the tree")
    return Path(tree, f"toy-{box.parent.name}-{box.name}")


def members(group, file):
    with contextlib.suppress(FileNotFoundError):
        return [int(number) for number in (group / file).read_text().split()]
    return []


def kill_all(find):
    """Until there are none. After an error the keeper asks again; its patience is 30 s."""
    until = time.monotonic() + 20
    while found := find():
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(f"processes {found[:3]} do not end")
        time.sleep(0.002)


def end_box(box):
    """Whatever is there of it."""
    group = group_of(box)
    kill_all(lambda: members(group, "cgroup.procs"))
    with contextlib.suppress(FileNotFoundError):
        for directory in (*(p for p in group.iterdir() if p.is_dir()), group):
            directory.rmdir()
    shutil.rmtree(box, ignore_errors=True)


# ---- making one ----

# In the new namespaces, with the box's directory as $1. The tmpfs is seen there only.
MAKE_ROOT = """
mount -t tmpfs -o "size=$disk,nr_inodes=$files,mode=755" toy "$1/root"
cd "$1/root"
mkdir -p usr etc proc dev/pts dev/shm tmp var workspace home/user run/paddock
chmod 1777 tmp dev/shm
chown 1000:1000 workspace home/user
for name in bin sbin lib lib64; do ln -s "usr/$name" "$name"; done
for name in usr etc; do
    mount --bind "/$name" "$name"
    mount -o remount,bind,ro,nosuid,nodev "$name"
done
for name in null zero full random urandom tty; do
    : > "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t proc -o nosuid,nodev,noexec proc proc
mount --bind "$1/door" run/paddock
mount -o remount,bind,ro,nosuid,nodev run/paddock
"""


def inside(box, *words):
    """`toy.py inside BOX PROGRAM WORDS...`, in the new namespaces: makes the root and becomes init there."""
    subprocess.run(["/bin/sh", "-euc", MAKE_ROOT, "toy", box], check=True)
    with socket.socket() as s:  # SIOCSIFFLAGS: the loopback is up and running
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x41))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and commands would
        signal.signal(number, signal.SIG_DFL)
    os.chroot(f"{box}/root")
    os.chdir("/")
    os.execve(words[0], words, {"PATH": "/usr/local/bin:/usr/bin:/bin"})


def read_build(payload):
    """The name of the box, and the limits of its spec (src/wire/spec.h). What cannot be given is refused."""
    r = Reader(payload)
    r.numbers("II")  # slot and waits: only of jails
    name = r.text()
    profile, network, rung, memory, _, _, disk, files = r.numbers("3I5Q")
    root_dir, root_name, image, options = r.text(), r.text(), r.text(), r.text()
    binds, = r.numbers("I")

    if rung > RUNG_NONE:
        raise Refused(ISOLATION, "provider toy promises no isolation")
    if profile != STRICT or network != NO_NETWORK:
        raise Refused(UNSUPPORTED, "provider toy has profile strict and network none only")
    if root_dir or root_name or image or options or binds:
        raise Refused(UNSUPPORTED, "provider toy has no roots, images, options and binds: leave them away")
    return name, memory, disk, files


def wait_at_door(group, listener, process):
    """Init's connection, and a pidfd of it. Whoever else comes has no business here."""
    listener.settimeout(0.05)
    while True:
        try:
            peer, _ = listener.accept()
        except TimeoutError:
            if process.poll() is not None:
                raise OSError("the box ended before init came to its door") from None
            continue
        pid, = struct.unpack_from("i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid in members(group, "cgroup.procs"):
            return peer, pid, os.pidfd_open(pid)
        peer.close()


def make_group(group, owner):
    """The server, whose uid is `owner`, makes groups for commands in it."""
    group.mkdir()
    for path in (group, *(group / name for name in ("cgroup.procs", "cgroup.threads", "cgroup.freeze"))):
        os.chown(path, owner, -1)


def build(boxes, payload, control, owner):
    """Makes a box. Gives init's pid, a pidfd of it, and the directory of the cgroup."""
    name, memory, disk, files = read_build(payload)
    box = boxes / name
    for directory in (box, box / "root", box / "door"):
        directory.mkdir(mode=0o711)

    with open("/proc/self/fd/4", "rb") as source, open(box / "door/init", "wb") as copy:
        shutil.copyfileobj(source, copy)
    os.chmod(box / "door/init", 0o555)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    at = os.open(box / "door", os.O_PATH)  # the path of a socket is short, a state directory's may be long
    listener.bind(f"/proc/self/fd/{at}/door")
    os.chmod(f"/proc/self/fd/{at}/door", 0o666)  # init has given up its power when it comes
    os.close(at)
    listener.listen(1)

    group = group_of(box)
    make_group(group, owner)
    process = subprocess.Popen(
        ["/usr/bin/unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--", sys.executable,
         __file__, "inside", box, "/run/paddock/init", "door", "home=/home/user", f"memory={memory}"],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "disk": str(disk), "files": str(files)},
        preexec_fn=lambda: (group / "cgroup.procs").write_text("0"), start_new_session=True)
    with listener:
        peer, pid, pidfd = wait_at_door(group, listener, process)
    with peer:
        send(peer, ADOPT, fds=[control])
    return pid, pidfd, os.open(group, os.O_PATH | os.O_DIRECTORY)


# ---- serving the keeper ----


def answer(keeper, boxes, owner, kind, request, payload, fds):
    if kind == BUILD:
        pid, pidfd, group = build(boxes, payload, fds[0], owner)
        terminals = os.open(f"/proc/{pid}/root/dev/pts", os.O_PATH | os.O_DIRECTORY)
        null = os.open("/dev/null", os.O_RDWR)  # for what there is not
        send(keeper, BUILT, request, struct.pack("=IIIi", RUNG_NONE, 0, 0, pid), [group, terminals, pidfd, null])
        fds += [pidfd, group, terminals, null]
        return
    if kind not in (SWEEP, STRIKE):
        raise Refused(UNSUPPORTED, f"message type {kind} is not for provider toy")
    r = Reader(payload)
    box, command = boxes / r.text(), r.text()
    if command:  # the group of one; the server makes threaded ones, which cannot list processes
        kill_all(lambda: members(group_of(box) / command, "cgroup.threads"))
    else:
        end_box(box)
    send(keeper, DONE, request)


def serve(keeper, boxes, owner):
    while True:
        data, fds, _, _ = socket.recv_fds(keeper, 1 << 18, 6)
        if not data:
            return
        _, kind, _, _, _, _, request = HEAD.unpack_from(data)
        try:
            answer(keeper, boxes, owner, kind, request, data[HEAD.size:], fds)
        except Exception as e:  # the keeper strikes and sweeps what was half made
            code = e.code if isinstance(e, Refused) else INTERNAL
            said = f"toy: {e}".encode()[:200]
            send(keeper, ERROR, request, struct.pack("=IiI", code, 0, len(said)) + said + b"\0")
        for fd in fds:
            os.close(fd)


def broker(_name, *options):
    given = dict(zip(options[::2], options[1::2]))
    boxes = Path(given["--state"], "boxes", given["--instance"])
    hold(boxes)
    remove_dead(boxes.parent)
    with contextlib.suppress(ConnectionError):
        serve(socket.socket(fileno=3), boxes, int(given["--owner"]))
    remove_all(boxes)


if __name__ == "__main__":
    {"broker": broker, "inside": inside}[sys.argv[1]](*sys.argv[2:])
