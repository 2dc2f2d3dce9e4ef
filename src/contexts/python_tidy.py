"""A page of the Python driver: memory in huge pages, so that a fork takes the kernel less time.

The kernel copies an entry for each page: in pages of 4 KiB, 200 MB take it ten milliseconds and more, in huge ones less than one.
Libraries for numbers ask for huge pages themselves; text, lists and dicts are in small ones. So while a context waits for its
next request, the kernel is asked to put what fills 2 MiB into one page (MADV_COLLAPSE, Linux 6.1), a few at a time: a request
waits for one step at most. It is asked only when much was written since the last time.

Left as it is: what is shared with a fork, and what is mostly empty. Put together it would take more memory than before.
"""

import errno
import os

try:
    ctypes, resource = core.standard("ctypes"), core.standard("resource")
except ImportError:     # small installations lack them
    ctypes = resource = None

HUGE = 2 << 20
SMALL = 4096
STEP = 8 * HUGE
COLLAPSE = 25       # MADV_COLLAPSE
OWN = 0x81          # the last byte of an entry of /proc/self/pagemap: the page is there, and nobody else has it
ENOUGH = HUGE // SMALL * 7 // 8
FAULTS_MIN = 8192   # pages that were written since the last round: 32 MiB

is_useless = resource is None or os.sysconf("SC_PAGESIZE") != SMALL


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def begin(used):
    """The steps of a round, an iterator; None when too little was written since the last one. `used`: bytes of memory."""
    if is_useless or faults() - core.driver.tidied < max(FAULTS_MIN, used // SMALL // 4):
        return None
    return steps()


def steps():
    global is_useless
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int
    taken, answer = 0, 0
    for start, end in list(ranges()):
        for first in range(start, end, STEP):
            for at, size in full(first, min(first + STEP, end)):
                if madvise(at, size, COLLAPSE) == 0:
                    taken += 1
                else:
                    answer = ctypes.get_errno()
            yield 0
    core.driver.tidied = faults()
    is_useless = not taken and answer == errno.EINVAL   # a kernel that does not know it, or may not do it


def ranges():
    """Where there are whole huge pages of memory that is this process's alone and no file's."""
    with open("/proc/self/maps", "rb") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        place, rights, _, _, node, *name = line.split()
        if rights == b"rw-p" and node == b"0" and (not name or name[0] == b"[heap]" or name[0].startswith(b"[anon:")):
            start, end = (int(number, 16) for number in place.split(b"-"))
            start, end = -(-start // HUGE) * HUGE, end // HUGE * HUGE
            if start < end:
                yield start, end


def full(start, end):
    """The parts of it that are worth it, neighbours as one: (address, bytes)."""
    with open("/proc/self/pagemap", "rb", 0) as pages:
        pages.seek(start // SMALL * 8)
        last_bytes = pages.read((end - start) // SMALL * 8)[7::8]
    found = []
    for at in range(start, end, HUGE):
        first = (at - start) // SMALL
        if last_bytes.count(OWN, first, first + HUGE // SMALL) < ENOUGH:
            continue
        if found and sum(found[-1]) == at:
            found[-1] = found[-1][0], found[-1][1] + HUGE
        else:
            found.append((at, HUGE))
    return found
