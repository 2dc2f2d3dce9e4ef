"""paddock-box as a program: what it needs of the place that it is put into, and what it takes of it.

It runs here in a network namespace of its own and as no pid 1, as in a rented machine. A command's walls and what a box
needs of an engine are tested elsewhere (tests/unit/test_init_refused.c, test_box_link.py)."""

import ctypes
import os
import platform
import random
import re
import secrets
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock_testing import host, link
from paddock_testing import run as paddock

BOX = paddock.TOP / "build" / "src" / "paddock-box"
MEMORY_MOST = 1 << 20
PIPES = ((link.AWAY, link.PIPE), (link.BACK, link.PIPE), (0, link.SAME))
LEASE_S = 2
COMMANDS_UID = 1000  # where uids can be given
NO_POWER = b"".join(b"Cap%s:\t0000000000000000\n" % n for n in (b"Inh", b"Prm", b"Eff", b"Bnd", b"Amb")) + b"NoNewPrivs:\t1\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the program gets a network of its own")

# What its two processes and the start of a command ask of the kernel (strace -f), but for being started.
CALLS = """accept4 bind brk capget capset chdir clone close close_range connect dup2 dup3 exit_group faccessat faccessat2
 fcntl fork fstat getdents64 getegid geteuid getpid getppid getrandom gettid getuid ioctl kill listen lseek mkdir mmap
 mprotect munmap newfstatat open openat openat2 pipe2 poll prctl prlimit64 read readlink readv recvfrom recvmsg
 rt_sigaction rt_sigprocmask rt_sigreturn sendmsg sendto set_tid_address setgroups setresgid setresuid setrlimit
 setsockopt setsid shutdown signalfd4 socket socketpair stat umask uname unlink vfork wait4 write writev""".split()
EPERM, ENOSYS = 1, 38


class Stream:
    """Both ends of `paddock-box join`."""

    def __init__(self, pid, way):
        self.process = subprocess.Popen(["nsenter", "-t", str(pid), "-n", *way, "join"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)

    def send(self, data):
        try:
            self.process.stdin.write(data)
        except BrokenPipeError:
            raise ConnectionError("nobody is there") from None

    def recv(self):
        if not select.select([self.process.stdout], [], [], paddock.seconds(30))[0]:
            raise TimeoutError("the box is silent")
        return os.read(self.process.stdout.fileno(), 65536)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


# A pid namespace, whose first process it is.
ALONE = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def filter_of(number, error):
    """Refuses one system call of this machine with an error."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x00050000 | error), (6, 0, 0, 0x7FFF0000)]
    return b"".join(struct.pack("<HBBI", *line) for line in code)


class Program:
    """paddock-box, started here. `refused` is a system call and how; `launcher` what runs the program."""

    def __init__(self, uid=0, lease=60, refused=None, launcher=(), program=BOX, first=False):
        self.dir = tempfile.mkdtemp(prefix="paddock-box-")
        self.key, self.id, self.way = os.urandom(32), os.urandom(16), [*map(str, launcher), str(program)]
        self.key_file = os.path.join(self.dir, "key")
        for name in ("work", "home"):
            os.mkdir(os.path.join(self.dir, name))
        Path(self.key_file).write_bytes(self.key)
        os.chmod(self.key_file, 0o400)
        for path in (self.dir, self.key_file):
            os.chown(path, uid, uid)
        for name in ("work", "home"):
            os.chown(os.path.join(self.dir, name), uid or COMMANDS_UID, uid or COMMANDS_UID)
        os.chmod(self.dir, 0o755)
        argv = [*(ALONE if first else ()), *self.way, "run", f"key={self.key_file}", f"box={self.id.hex()}", f"lease={lease}",
                f"workspace={self.dir}/work", f"home={self.dir}/home"]
        self.process = self.start(argv, uid, filter_of(*refused) if refused else b"")

    def start(self, argv, uid, code):
        """By way of a process that gives up what it should not have, and is not traced by libc in doing so."""
        words = (ctypes.c_char_p * (len(argv) + 1))(*[w.encode() for w in argv], None)
        env = (ctypes.c_char_p * 2)(b"PATH=/usr/bin:/bin", None)
        libc = ctypes.CDLL(None, use_errno=True)
        lines = ctypes.create_string_buffer(code, len(code) + 1)
        fprog = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(lines)))
        program = argv[0].encode()

        def prepare():
            if libc.unshare(0x40000000) < 0:  # CLONE_NEWNET
                os._exit(120)
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            if code and (libc.prctl(38, 1, 0, 0, 0) < 0 or libc.prctl(22, 2, fprog, 0, 0) < 0):
                os._exit(121)
            libc.execve(program, words, env)
            os._exit(122)

        return subprocess.Popen(["/bin/true"], preexec_fn=prepare, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, start_new_session=True, cwd="/")

    def far_end(self):
        found = [p for p in host.descendants(self.process.pid) if host.read_proc(p, "comm") == "paddock-link\n"]
        return found[0] if found else None

    def join(self):
        """The keeper's end, when the box can be joined; None when it has ended."""
        deadline = time.monotonic() + paddock.seconds(30)
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it neither ends nor can be joined"
            self.stream = Stream(self.process.pid, self.way)
            try:
                return link.Keeper(self.key, self.id).connect(self.stream)
            except (ConnectionError, link.Refused):
                self.stream.close()
                time.sleep(0.02)
        return None

    def wait(self, limit):
        """What it said, when it has ended by itself."""
        said = self.process.communicate(timeout=paddock.seconds(limit))[1]
        return said.decode(errors="replace")

    def close(self):
        for pid in [*host.descendants(self.process.pid), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.communicate()
        shutil.rmtree(self.dir, ignore_errors=True)


@pytest.fixture
def start():
    made = []

    def begin(**how):
        made.append(Program(**how))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def run(keeper, *argv, uid=COMMANDS_UID, given=b"", path="/"):
    name, (write, read, _) = keeper.exec(list(argv), *PIPES, uid=uid, cwd=path)
    keeper.write(write, given)
    keeper.end(write)
    status = keeper.result(name)
    return status >> 8, keeper.channels[read].got


# ---- what it needs ----

def test_it_is_static():
    """No interpreter and no library by name."""
    data = BOX.read_bytes()
    assert data[:4] == b"\x7fELF" and len(data) < 500_000
    told = subprocess.run(["readelf", "-ld", BOX], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in told and "NEEDED" not in told, told
    control = subprocess.run(["readelf", "-ld", "/bin/true"], capture_output=True, text=True, check=True).stdout
    assert "INTERP" in control and "NEEDED" in control


@pytest.mark.parametrize("uid", [0, 12345, 2_000_000_000])
def test_any_uid_and_not_the_first_process(start, uid):
    box = start(uid=uid)
    keeper = box.join()
    assert host.status(box.process.pid)["NSpid"].split()[-1] != "1"
    own = uid or COMMANDS_UID
    status, text = run(keeper, "/bin/sh", "-c", "id -u; echo >made; exit 3", uid=own, path=f"{box.dir}/work")
    assert (status, text) == (3, b"%d\n" % own)
    assert os.stat(f"{box.dir}/work/made").st_uid == own
    assert not os.path.exists(box.key_file)
    keeper.bye()
    box.wait(30)


def test_without_a_shell(start):
    """Words and no line: nothing but the program that is asked for is run."""
    keeper = start().join()
    assert run(keeper, "/usr/bin/cat", given=b"as it came") == (0, b"as it came")


# ---- another machine ----

@pytest.fixture(scope="module")
def arm64():
    """The program for another machine, and what runs it here."""
    for needed in ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"):
        if not shutil.which(needed):
            pytest.skip(f"there is no {needed} (scripts/install-deps arm64)")
    subprocess.run(["scripts/configure", "arm64"], cwd=paddock.TOP, check=True, capture_output=True, timeout=paddock.seconds(120))
    subprocess.run(["ninja", "-C", "build-arm64", "--quiet", "src/paddock-box"], cwd=paddock.TOP, check=True,
                   capture_output=True, timeout=paddock.seconds(180))
    return paddock.TOP / "build-arm64" / "src" / "paddock-box"


@pytest.mark.skipif(platform.machine() == "aarch64", reason="this machine is one")
def test_on_another_machine(start, arm64):
    told = subprocess.run(["readelf", "-hl", arm64], capture_output=True, text=True, check=True).stdout
    assert "AArch64" in told and "INTERP" not in told, told
    # As the first process there: qemu does not know the call that another one needs.
    keeper = start(program=arm64, launcher=[shutil.which("qemu-aarch64-static")], first=True).join()
    data = os.urandom(200_000)
    assert run(keeper, "/bin/cat", given=data) == (0, data)
    assert run(keeper, "/bin/sh", "-c", "id -u; exit 5") == (5, b"1000\n")


# ---- what it takes ----

def private(pid):
    """Bytes that are nobody else's, and its share of all."""
    told = host.read_proc(pid, "smaps_rollup")
    figures = {name: int(kb) << 10 for name, kb in re.findall(r"(?m)^(\w+): +(\d+) kB", told)}
    return figures["Private_Clean"] + figures["Private_Dirty"], figures["Pss"]


def test_a_box_takes_a_megabyte_at_most(start):
    """Idle, and again when it has had much to do: both of its processes together."""
    box = start()
    keeper = box.join()
    assert run(keeper, "/bin/true")[0] == 0
    idle = [private(p) for p in (box.process.pid, box.far_end())]
    data = os.urandom(1 << 20)
    assert run(keeper, "/bin/cat", given=data) == (0, data)
    for _ in range(100):
        assert run(keeper, "/bin/true")[0] == 0
    worked = [private(p) for p in (box.process.pid, box.far_end())]
    print(f"private and proportional bytes of init and far end: idle {idle}, later {worked}")
    assert 0 < sum(p for p, _ in idle) <= MEMORY_MOST and sum(s for _, s in idle) <= MEMORY_MOST, idle
    assert sum(p for p, _ in worked) <= MEMORY_MOST, worked


# ---- refused system calls ----

def numbers():
    """Of this machine's system calls, by name."""
    for folder in (f"/usr/include/{platform.machine()}-linux-gnu/asm", "/usr/include/asm"):
        for name in ("unistd_64.h", "unistd.h"):
            if os.path.exists(file := os.path.join(folder, name)):
                text = Path(file).read_text(encoding="ascii")
                if "generic" in text and "asm-generic" in text:
                    text = Path("/usr/include/asm-generic/unistd.h").read_text(encoding="ascii")
                return {n: int(v) for n, v in re.findall(r"#define __NR3?2?6?4?_(\w+) (\d+)", text)}
    return {}


class Weaker(Exception):
    """A box has less between it and its commands than it should."""


def refuse(call):
    """What becomes of a box that is refused a system call: "works", or what it said."""
    name, error, number = call
    box, told = Program(refused=(number, error), lease=LEASE_S), ""
    try:
        keeper = box.join()
        if keeper:
            try:
                status, text = run(keeper, "/bin/grep", "-hE", "^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)", "/proc/self/status")
                if status == 0 and text:
                    if text != NO_POWER or os.path.exists(box.key_file):
                        raise Weaker(f"{name} refused with {error}: a command has {text.decode()}, or the key is still there")
                    keeper.bye()
                    return "works"
            except (AssertionError, ConnectionError, link.Refused) as why:
                told = str(why)  # the command was refused, or the box is on its way out
            box.stream.close()
        # Without a keeper it ends with its lease at the latest, and says why, if it has not told its keeper before.
        said = box.wait(LEASE_S + 60) or told
        assert said or box.process.returncode < 0, f"{name}: it ended without a word, {box.process.returncode}"
        return said or f"signal {-box.process.returncode}"
    except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as why:
        raise AssertionError(f"{name} refused with {error}: {why}") from why
    finally:
        box.close()


def test_each_refused_call_is_told_and_makes_nothing_weaker():
    """At night each, and by day some: in both ways that filters refuse."""
    known = numbers()
    calls = [(n, e, known[n]) for n in CALLS if n in known for e in (EPERM, ENOSYS)]
    assert len(calls) > 60, "the system calls of this machine are not known"
    if not paddock.NIGHTLY:
        calls = random.sample(calls, 16)
    with ThreadPoolExecutor(4) as pool:
        told = dict(zip([c[:2] for c in calls], pool.map(refuse, calls)))
    for call, what in told.items():
        print(*call, what.strip())
    if paddock.NIGHTLY:
        assert sum(what == "works" for what in told.values()) > len(told) // 4, told
