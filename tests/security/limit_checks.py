"""What every limit test checks about those who did nothing: the host and the neighbour."""

import contextlib
import errno
import os
import select
import subprocess
import time
import uuid

from paddock_testing import host
from paddock_testing import run as paddock

PROBE = "/opt/attack/probe"


def new_word():
    """A word for a command line by which the host finds the processes of one sandbox."""
    return "w" + uuid.uuid4().hex


def check_neighbour(limit=5):
    """Another sandbox can be made, runs, and can fork: while the attack goes on, or after it."""
    result = paddock.run(["/bin/sh", "-c", "echo fine | cat"], limit=limit)
    assert (result.status, result.out) == (0, "fine\n"), "neighbour harmed\n" + result.explain()
    return result.took


def check_host():
    """The host can fork, open, write and count."""
    start = time.monotonic()
    done = subprocess.run(["/bin/sh", "-c", "echo fine | cat"], capture_output=True, check=False,
                          timeout=paddock.seconds(5))
    assert done.stdout == b"fine\n", "the host cannot run a pipeline"
    with open("/proc/self/status") as f:
        assert f.read(10)
    assert time.monotonic() - start < paddock.seconds(5)


@contextlib.contextmanager
def attack(fixtures, command, *, ready=None, ready_limit=30, gone_limit=20, **options):
    """A sandbox in which `command` goes on while the block runs, and which is gone after it.

    `command` gets a word as last argument. Yields (process, pid namespace of the jail) once a
    process with that word is there, and has printed a line that starts with `ready`, if given.
    A greedy jail leaves the kernel much to tidy up, for which `gone_limit` is."""
    word = new_word()
    binds = fixtures.binds()
    with paddock.background([*command, word], binds=binds, **options) as process:
        pids = paddock.wait_for(lambda: host.with_word(word) or process.poll() is not None, 30,
                                f"{command} runs")
        assert process.poll() is None, (f"ended at once with {process.returncode}: "
                                        f"{process.stderr.read()[-2000:]!r}")
        namespace = host.namespace(pids[0], "pid")
        line = b""
        if ready:
            line = read_line(process, ready_limit)
            assert line.startswith(ready.encode()), line
        yield process, namespace, line.decode().split()
    check_gone(namespace, gone_limit)


def read_line(process, limit):
    """One line of its output, within a bound."""
    deadline = time.monotonic() + paddock.seconds(limit)
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        assert left > 0, f"no line of output in time, only {data!r}"
        if select.select([process.stdout], [], [], left)[0]:
            byte = os.read(process.stdout.fileno(), 1)
            assert byte, f"output ended after {data!r}"
            data += byte
    return data


def check_gone(namespace, limit=4):
    """No process is left in the jail's pid namespace."""
    paddock.wait_for(lambda: not host.in_pid_namespace(namespace), limit,
                     f"the processes of {namespace} are gone")


def reported(result, what):
    """(count, error name) of the line that the probe's command printed; "" is no error."""
    text = result.record.get("stdout", "") if result.record else result.out
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == what:
            return int(fields[1]), errno.errorcode.get(int(fields[2]), "")
    raise AssertionError(f"no line '{what}'\n{result.explain()}")
