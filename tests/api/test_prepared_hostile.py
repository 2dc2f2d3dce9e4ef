"""Code of the sandbox against a shell that waits, which is its own user's.

It may kill, stop and trace it, and read its line: as it may with the shell of a line that runs. Its
pipes are another user's: their names in /proc open neither the state pipe nor, for writing, that of
the line. The control writes to a state pipe where a command has it: as a child of the line.
"""

import pytest

from helpers import Box
from paddock_testing.run import wait_for
from test_prepared import await_shell, prepare, run_in_it, stop

# What another process of the user does to the shell P, by the names of its descriptors.
SPY = r'''
import os, sys
P, what = int(sys.argv[1]), sys.argv[2]
open("/workspace/spy-ready", "w")
try:
    if what == "forge":
        os.write(os.open(f"/proc/{P}/fd/63", os.O_WRONLY), b"\n/etc\0\0")
    elif what == "give":
        os.write(os.open(f"/proc/{P}/fd/0", os.O_WRONLY), b"set -- 'echo given'")
    elif what == "steal":
        os.read(os.open(f"/proc/{P}/fd/0", os.O_RDONLY), 100000)
    print("done")
except PermissionError:
    print("denied")
'''


@pytest.fixture
def box(api, make_sandbox):
    made = Box(api, make_sandbox())
    made.exec(argv=["sh", "-c", "cat > spy"], stdin=SPY)
    return made


def spy(box, pid, what, *more):
    return box.exec(argv=["python3", "/workspace/spy", str(pid), what, *more])


@pytest.mark.parametrize("what", ["forge", "give"])
def test_nobody_inside_writes_to_its_pipes(box, what):
    pid = prepare(box)
    assert spy(box, pid, what)["stdout"] == "denied\n"
    assert await_shell(box) == pid
    result = box.exec("echo mine; cd /tmp")
    assert result["stdout"] == "mine\n" and box.env()["cwd"] == "/tmp"


@pytest.mark.parametrize("written,cwd", [
    (r"/etc\0\0", "/etc"),                                  # it works: a line's state is its user's
    (r"/etc\0declare -x LD_PRELOAD=\"/tmp/x\"\n\0", "/etc"),  # but not what programs would load
    (r"\n/etc\0\0", "/workspace"), (r"zzz\0\0", "/workspace"), (r"/etc", "/workspace")])
def test_a_child_of_the_line_writes_its_state(box, written, cwd):
    """The control: whoever has the pipe can write. What comes is checked; a byte before it is no
    part of a state, whoever wrote it."""
    result = run_in_it(box, f"cd /workspace; trap - EXIT; printf '{written}' >&63")
    assert result["exit_code"] == 0
    assert (result["state"] == "updated") == (cwd == "/etc")
    assert box.env()["cwd"] == cwd and "LD_PRELOAD" not in box.env()["env"]


def test_a_stolen_line_runs_all_the_same(box):
    """A thief who reads the pipe before the shell does: it has no line, says so, and another runs."""
    pid = prepare(box)
    stop(box, pid)
    thief = box.start(argv=["python3", "/workspace/spy", str(pid), "steal"])
    wait_for(lambda: box.exec(argv=["test", "-e", "spy-ready"])["exit_code"] == 0, 10, "it waits")
    go = box.start("sleep 0.5; kill -CONT %d" % pid)
    result = box.exec("echo ran >> ran; cat ran", timeout_s=60)
    assert result["exit_code"] == 0 and result["stdout"] == "ran\n", result
    for process in (thief, go):
        box.signal(process["process_id"], "KILL")
    assert box.out("cat ran") == "ran\n"


# Lets the shell P go on until it has read its line, which is when its input is /dev/null, and leaves
# it stopped there: it has not begun.
HALT = r'''
import ctypes, os, signal, sys
P = int(sys.argv[1])
call = ctypes.CDLL(None, use_errno=True).ptrace
call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
SYSCALL, ATTACH, DETACH = 24, 16, 17
if call(ATTACH, P, None, None):
    sys.exit("refused")
os.waitpid(P, 0)
print("attached", flush=True)
while os.readlink(f"/proc/{P}/fd/0") != "/dev/null":
    if call(SYSCALL, P, None, None) or not os.WIFSTOPPED(os.waitpid(P, 0)[1]):
        sys.exit("lost")
call(DETACH, P, None, signal.SIGSTOP)
print("halted", flush=True)
'''


def test_stopped_with_its_line(box):
    """It has read its line and is stopped before it begins: the line runs elsewhere, once."""
    for _ in range(20):  # on a busy machine the line may be taken back before the shell has read it
        box.out("cd /workspace; rm -f ran")
        pid = prepare(box)
        halter = box.start(argv=["python3", "-c", HALT, str(pid)])
        box.wait_output(halter["process_id"], b"attached")
        result = box.exec("echo $$ >> ran; cat ran; cd /tmp", timeout_s=60)
        box.wait(halter["process_id"])
        if b"halted" in box.output(halter["process_id"]).body:
            break
    else:
        raise AssertionError("the shell was never stopped with its line")
    assert result["exit_code"] == 0 and result["state"] == "updated", result
    assert len(result["stdout"].split()) == 1 and result["stdout"] != f"{pid}\n"
    wait_for(lambda: box.exec(argv=["test", "-e", f"/proc/{pid}"])["exit_code"] == 1, 10, "it is gone")
    assert box.out("pwd; wc -l < /workspace/ran") == "/tmp\n1\n"


def test_traced_while_it_waits(box):
    """A tracer keeps it, and its end from being told, as it can with every shell of its user. The
    line then has its time-out, and has not run; and when the tracer is gone everything goes on."""
    pid = prepare(box)
    held = box.start(argv=["python3", "-c", (
        "import ctypes, time\n"
        f"r = ctypes.CDLL(None, use_errno=True).ptrace(16, {pid}, None, None)\n"
        "print('attached' if r == 0 else 'refused', flush=True)\n"
        "time.sleep(60)")])
    seen = wait_for(lambda: box.output(held["process_id"], "?stream=stdout").body, 10, "it tries")
    answer = box.ask("echo ran >> ran; cat ran", timeout_s=2)
    ran = box.exec(argv=["sh", "-c", "cat ran 2>&1 || true"])["stdout"]
    if b"attached" in seen:
        assert answer.status == 504 or answer.json()["timed_out"] and "No such" in ran, answer
    else:
        assert answer.json()["stdout"] == "ran\n"
    box.signal(held["process_id"], "KILL")
    assert wait_for(lambda: box.exec("echo on")["state"] == "updated", 10, "the shell is free")
    assert box.exec(argv=["sh", "-c", "cat ran 2>&1 | wc -l"])["stdout"] == "1\n", "no second time"
