"""Builders that die as soon as they start, because of a limit or a filter that Paddock was started under:
whoever asked for a jail reads the cause and the remedy, nothing stays, and nothing spins."""

import ctypes
import platform
import resource
import socket
import struct
import subprocess
import time

import pytest

from paddock_testing import broker, host
from paddock_testing import run as paddock

from .helpers import check_gone, check_one_line, new_word

# Builders make one for init; nobody else of Paddock does.
MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}.get(platform.machine())


def no_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def no_memory_files():
    """A filter that ends whoever makes a file in memory."""
    def step(code, jump_true, jump_false, value):
        return struct.pack("=HBBI", code, jump_true, jump_false, value)

    load_number, jump_equal, answer = 0x20, 0x15, 0x06
    program = (step(load_number, 0, 0, 0) + step(jump_equal, 0, 1, MEMFD_CREATE)
               + step(answer, 0, 0, 0x80000000) + step(answer, 0, 0, 0x7FFF0000))
    text = ctypes.create_string_buffer(program, len(program))
    whole = struct.pack("@HP", len(program) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no_new_privs
    assert libc.prctl(22, 2, ctypes.create_string_buffer(whole, len(whole)), 0, 0) == 0, ctypes.get_errno()


CAUSES = [
    pytest.param(no_files, ("SIGXFSZ", "ulimit -f"), id="file size"),
    pytest.param(no_memory_files, ("SIGSYS", "filter"), id="filter", marks=pytest.mark.skipif(
        MEMFD_CREATE is None, reason="the number of memfd_create is not known here")),
]


@pytest.mark.parametrize("cause, says", CAUSES)
def test_run_names_the_cause_and_leaves_nothing(cause, says):
    word = new_word()
    done = subprocess.run([paddock.PADDOCK, "run", "--", "true", word], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, preexec_fn=cause, check=False,
                          env=paddock.clean_environment(), timeout=paddock.seconds(60))
    check_one_line(done, 125, *says)
    check_gone(word)  # the keeper has the command line of who started it


@pytest.mark.parametrize("cause, says", CAUSES)
def test_a_private_keeper_ends_with_its_client(cause, says):
    """Also when what its client asked for was never made, and cannot be swept."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = subprocess.Popen([paddock.PADDOCK, "keeper", "--client", str(theirs.fileno())],
                              pass_fds=(theirs.fileno(),), preexec_fn=cause, stdin=subprocess.DEVNULL,
                              env=paddock.clean_environment())
    try:
        theirs.close()
        ours.settimeout(paddock.seconds(60))
        for _ in range(2):
            broker.send(ours, "CREATE", broker.spec(), [far.fileno(), near.fileno()])
            answer = broker.receive(ours)
            assert answer.kind == "ERROR" and all(word in answer.says for word in says), answer

        ours.close()
        assert keeper.wait(timeout=paddock.seconds(30)) == 0
    finally:
        for sock in (ours, near, far):
            sock.close()
        paddock.end(keeper)


def test_the_pause_between_starts_grows(tmp_path):
    """Of a program that ends at once: a builder and a sweeper are started three times each within three
    seconds, not more often, and `run` reads how they end."""
    log = tmp_path / "starts"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho >>{log}\nexit 7\n")
    program.chmod(0o755)
    tmp_path.chmod(0o755)

    start = time.monotonic()
    keeper = paddock.Keeper(options=["--kind", "short", "--program", str(program), "--builders", "1"])
    try:
        keeper.wait_ready()
        paddock.wait_for(lambda: log.exists() and len(log.read_text()) >= 6, 60, "each has been started thrice")
        assert time.monotonic() - start > 2.8, log.read_text()

        result = paddock.run(["/bin/true"], env=keeper.env)
        check_one_line(result, 125, "broker", "status 7", str(program))
        keeper.kill(15)
        assert keeper.process.returncode == 0
        assert not host.with_word(str(program))
    finally:
        keeper.close()
