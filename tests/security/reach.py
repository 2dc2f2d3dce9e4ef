"""Runs in a sandbox, and as its control outside: what a process may do to another one.

reach.py WHOM RESULT: WHOM is `waiting`, a child of process 1 that has its user, as the one that waits for the next
command does; or `own`, a child of this process. RESULT gets a JSON object: what was tried, and `worked` or the
error's name. When the process is gone or another's by then, nothing of it counts and the next one is tried."""

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time

PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
PIDFD_GETFD, KCMP = 438, 312

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    if getattr(libc, name)(*args) == -1:
        raise OSError(ctypes.get_errno(), name)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def a_page(pid):
    """The address of something that can be read there: where it is the same program, of this process's own."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="ascii") as maps:
        return int(next(row for row in maps if " r-" in row).split("-")[0], 16)
    return 0x10000


def vm_read(pid):
    room = ctypes.create_string_buffer(1)
    here = Vector(ctypes.addressof(room), 1)
    there = Vector(a_page(pid), 1)
    call("process_vm_readv", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)


def mem_read(pid):
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(a_page(pid))
        memory.read(1)


def mem_write(pid):
    os.close(os.open(f"/proc/{pid}/mem", os.O_WRONLY))


def trace(pid):
    call("ptrace", PTRACE_ATTACH, pid, None, None)
    os.waitpid(pid, 0x40000000)  # __WALL
    call("ptrace", PTRACE_DETACH, pid, None, None)


def seize(pid):
    call("ptrace", PTRACE_SEIZE, pid, None, None)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, 0x40000000)
    call("ptrace", PTRACE_DETACH, pid, None, None)
    os.kill(pid, signal.SIGCONT)


def take_descriptor(pid):
    pidfd = os.pidfd_open(pid)
    call("syscall", PIDFD_GETFD, pidfd, 0, 0)


def read(name):
    def look(pid):
        with open(f"/proc/{pid}/{name}", "rb") as file:
            file.read(1)
    return look


WAYS = {
    "signal": lambda pid: os.kill(pid, 0),
    "stop": lambda pid: (os.kill(pid, signal.SIGSTOP), os.kill(pid, signal.SIGCONT)),
    "signal-by-pidfd": lambda pid: signal.pidfd_send_signal(os.pidfd_open(pid), 0),
    "queue": lambda pid: call("sigqueue", pid, signal.SIGCONT, None),
    "trace": trace,
    "seize": seize,
    "vm-read": vm_read,
    "memory": mem_read,
    "memory-write": mem_write,
    "environment": read("environ"),
    "maps": read("maps"),
    "auxv": read("auxv"),
    "descriptors": lambda pid: os.listdir(f"/proc/{pid}/fd"),
    "executable": lambda pid: os.readlink(f"/proc/{pid}/exe"),
    "a-descriptor": take_descriptor,
    "same-memory": lambda pid: call("syscall", KCMP, os.getpid(), pid, 1, 0, 0),
    "limits": lambda pid: resource.prlimit(pid, resource.RLIMIT_CORE),
    "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "processors": lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(0)),
    "oom-score": lambda pid: open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii").close(),
}


def facts(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
        return fields.get("PPid"), fields.get("Uid")
    return None


def find_waiting():
    init = facts(1)
    for name in os.listdir("/proc"):
        if name.isdigit() and facts(name) == ("1", init[1]):
            return int(name)
    return None


def reach(pid):
    """None when the process became something else meanwhile."""
    was, done = facts(pid), {}
    for name, way in WAYS.items():
        try:
            way(pid)
            done[name] = "worked"
        except OSError as e:
            done[name] = errno.errorcode.get(e.errno, str(e.errno))
    return done if was and facts(pid) == was else None


def main(whom, result):
    end = time.monotonic() + 100
    done = None
    while not done and time.monotonic() < end:
        pid = find_waiting() if whom == "waiting" else subprocess.Popen(["sleep", "1000"]).pid
        done = pid and reach(pid)
        if whom == "own":
            os.kill(pid, signal.SIGKILL)
    with open(result + ".new", "w", encoding="ascii") as file:
        json.dump(done, file)
    os.rename(result + ".new", result)


main(*sys.argv[1:])
