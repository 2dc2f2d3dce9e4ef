"""A task as Fargate or Cloud Run would run it: the program paddock-box in a network, a mount and a process namespace of its own, as
root with the capabilities that containers have there, reached by an address that only this machine has."""

import contextlib
import functools
import itertools
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

from . import host
from . import run as paddock

PROGRAM = paddock.TOP / "build" / "src" / "paddock-box"
CAPABILITIES = ("chown,dac_override,fsetid,fowner,mknod,net_raw,setgid,setuid,setfcap,setpcap,net_bind_service,"
                "sys_chroot,kill,audit_write")
_numbers = itertools.count(1)
_claims = []  # kept open as long as this process lives
_lock = threading.Lock()

# $1 is the directory of the root, then the words of the box. The machine's programs are the image's.
INSIDE = """
ip link set lo up
mount -t tmpfs -o mode=755 task "$1"
cd "$1"
mkdir -p usr etc proc dev/pts dev/shm tmp var run workspace home/user
chmod 1777 tmp dev/shm
chown 1000:1000 workspace home/user
for name in bin sbin lib lib64; do ln -s "usr/$name" "$name"; done
for name in usr etc; do mount --bind "/$name" "$name"; mount -o remount,bind,ro "$name"; done
for name in null zero full random urandom tty; do : > "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t proc -o nosuid,nodev,noexec proc proc
cp "$2" box
if [ -n "${SEEN_AT:-}" ]; then mkdir -p ".$SEEN_AT"; mount --bind "$SEEN" ".$SEEN_AT"; fi
unset SEEN SEEN_AT
cd /
root=$1
shift 2
exec setpriv --bounding-set "$CAPABILITIES" --inh-caps=-all chroot "$root" /box "$@"
"""


def why_not():
    """Why there can be no task here; "" when there can."""
    if os.geteuid() != 0:
        return "it needs root"
    name = f"pdt-try{os.getpid()}"  # another process may try in the same moment
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return "no network namespace can be made: " + made.stderr.decode().strip()
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


@functools.cache
def _place():
    """The part of addresses that is this process's alone: another one's tasks may run beside."""
    for low in range(os.getpid(), os.getpid() + 200):
        claim = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            claim.bind(f"\0paddock-task-{low % 200}")
            _claims.append(claim)
            return low % 200
        claim.close()
    raise RuntimeError("200 processes have tasks")


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Task:
    """Runs from the start on. `address` is where its port is. `mount`: (a directory of this machine, where it sees it)."""

    def __init__(self, words, environment, directory, program=PROGRAM, mount=("", "")):
        with _lock:
            number = next(_numbers)
        low = _place()
        self.name, self.address = f"pdt{os.getpid()}-{number}", f"10.{213 + number // 250 % 10}.{low}.{number % 250 + 1}"
        self.log = Path(directory, self.name + ".log")
        self.root = Path(directory, self.name)
        self.root.mkdir()
        self._plug_in()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork",
                 "--kill-child", "--", "sh", "-euc", INSIDE, "task", self.root, program, *words],
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CAPABILITIES": "-all,+" + CAPABILITIES.replace(",", ",+"),
                     "SEEN": mount[0], "SEEN_AT": mount[1], **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _plug_in(self):
        near = f"p{os.getpid() % 100000}-{self.name.rsplit('-', 1)[1]}"
        _ip("netns", "add", self.name)
        _ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", near, "up")
        _ip("route", "add", self.address + "/32", "dev", near)
        _ip("-n", self.name, "addr", "add", self.address + "/32", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "route", "add", "default", "dev", "eth0")

    def runs(self):
        return self.process.poll() is None

    def end(self, how=signal.SIGTERM):
        """As StopTask does: the first process has a moment to end by itself."""
        for pid in host.descendants(self.process.pid)[-1:] if how == signal.SIGKILL else [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        try:
            self.process.wait(paddock.seconds(3))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.clear()

    def clear(self):
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)
