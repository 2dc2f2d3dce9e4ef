"""System calls that a process of somebody else's is made to do: what it would do if it had been taken over.

The process is stopped, calls one thing by a `syscall` instruction of its own, and goes on as if nothing had been. So it
is tried under the filter, the user and the namespaces that the process really has. Needs root, and x86-64."""

import ctypes
import errno
import os
import platform
from contextlib import contextmanager

ATTACH, DETACH, GETREGS, SETREGS, STEP = 16, 17, 12, 13, 9
WALL = 0x40000000
NUMBERS = {"open": 2, "mprotect": 10, "socket": 41, "connect": 42, "bind": 49, "listen": 50, "clone": 56, "execve": 59,
           "kill": 62, "chdir": 80, "unlink": 87, "ptrace": 101, "mount": 165, "setuid": 105, "openat": 257,
           "unshare": 272, "setns": 308, "process_vm_readv": 310, "pidfd_open": 434, "getpid": 39, "close": 3}
REGISTERS = ("r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base"
             " ds es fs gs").split()


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in REGISTERS]


def why_not():
    if os.geteuid() != 0:
        return "needs root"
    return None if platform.machine() == "x86_64" else "registers of x86-64 are set"


def ptrace(what, pid, data=0):
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_long
    if call(what, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {what}")


def find_instruction(pid):
    """Where `syscall` is in the code of the process."""
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb") as mem:
        for line in maps:
            where, modes = line.split()[:2]
            start, end = (int(x, 16) for x in where.split("-"))
            if "x" not in modes or "[vsyscall]" in line:
                continue
            mem.seek(start)
            found = mem.read(end - start).find(b"\x0f\x05")
            if found >= 0:
                return start + found
    raise AssertionError("there is no such instruction")


@contextmanager
def taken(pid):
    """Gives call(NAME, ARGUMENTS) -> result, below 0 an errno. An argument of bytes is their address there."""
    ptrace(ATTACH, pid)
    os.waitpid(pid, WALL)
    before = Registers()
    ptrace(GETREGS, pid, ctypes.addressof(before))
    instruction = find_instruction(pid)

    def call(name, *arguments):
        now = Registers.from_buffer_copy(before)
        # Below the stack and what a function may use below it.
        at = (before.rsp - 8192) & ~0xf
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as mem:
            values = []
            for one in arguments:
                if isinstance(one, bytes):
                    mem.seek(at)
                    mem.write(one + b"\0")
                    values.append(at)
                    at += (len(one) + 16) & ~0xf
                else:
                    values.append(one)
        for register, value in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), values):
            setattr(now, register, value & (1 << 64) - 1)
        now.rax, now.orig_rax, now.rip = NUMBERS[name], (1 << 64) - 1, instruction
        ptrace(SETREGS, pid, ctypes.addressof(now))
        ptrace(STEP, pid)
        _, status = os.waitpid(pid, WALL)
        assert os.WIFSTOPPED(status), f"{name}: the process has ended: {status}"
        ptrace(GETREGS, pid, ctypes.addressof(now))
        return ctypes.c_longlong(now.rax).value

    try:
        yield call
    finally:
        ptrace(SETREGS, pid, ctypes.addressof(before))
        ptrace(DETACH, pid)


def refused(result):
    return result in (-errno.EPERM, -errno.EACCES)
