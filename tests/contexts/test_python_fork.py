"""Forks of a Python context: the variables, descriptors of its own, and the join socket of the worker that takes it in."""

import ctypes
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from paddock_testing import drivers
from paddock_testing import run as paddock


def test_a_fork_has_the_variables_and_goes_its_own_way(python):
    python.run("x = [1]\ndef f(): return x")
    child = python.fork()
    assert child.ready == {**python.ready, "memory": child.ready["memory"]} and child.ready["seq"] == 1
    assert child.forked["threads_lost"] == 0
    assert child.run("x.append(2); f()").text == "[1, 2]"
    assert python.run("f()").text == "[1]"
    assert child.run("print('mine'); import sys; print('too', file=sys.stderr)").order[1:3] == [
        ("stdout", "mine\n"), ("stderr", "too\n")]
    assert python.run("0").stdout == ""
    child.stop()


def test_a_fork_fetches_its_descriptors_where_none_can_be_sent(python):
    """The driver is asked before anybody listens there."""
    python.run("x = [1]")
    child = python.fork(fetch=True)
    assert child.run("x.append(2); print(x)").stdout == "[1, 2]\n"
    second = child.fork(fetch=True)
    assert second.run("x").text == "[1, 2]" and python.run("x").text == "[1]"
    for each in (second, child):
        each.stop()


STRANGER = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("\\0paddock-" + sys.argv[1])
    listener.listen()
    print("up", flush=True)
    driver = listener.accept()[0]
near, far = socket.socketpair()
requests, null = socket.socketpair()[1], os.open("/dev/null", os.O_RDWR)
try:
    socket.send_fds(driver, [b"d"], [requests.fileno()] + [null] * 3 + [far.fileno()])
except OSError:
    pass  # the driver has left already
far.close()
print("pid", near.recv(100).decode().strip() or "none", flush=True)
"""


@pytest.mark.parametrize("user", [None, 12345])
def test_a_fork_takes_no_descriptors_of_another_user(python, user):
    """Whoever listens first. The control is a process of the driver's own user, whose descriptors are taken."""
    if os.geteuid() != 0:
        pytest.skip("another user needs root")
    name = f"fork-{os.urandom(6).hex()}"
    stranger = subprocess.Popen([sys.executable, "-c", STRANGER, name], stdout=subprocess.PIPE, text=True, user=user)
    assert stranger.stdout.readline() == "up\n"
    child = drivers.Streams()
    near, far = socket.socketpair()
    python.send({"op": "fork", "fetch": True}, request=name)

    told = stranger.stdout.readline()
    assert (told == "pid none\n") == (user is not None), told
    if user is not None:
        drivers.hand_over(name, [*child.far, far.fileno()])
        far.close()
        near.settimeout(paddock.seconds(30))
        assert int(near.recv(100)) > 1
    stranger.wait(paddock.seconds(30))
    near.close()    # the fork ends
    python.collect(name, until=("forked",))
    child.close_far()
    child.close()


def test_the_count_goes_on_in_a_fork(python):
    python.run("1")
    child = python.fork()
    assert child.run("1").order[0][1]["count"] == 2
    child.stop()


def test_forks_of_forks(python):
    first = python.fork()
    first.run("x = 1")
    second = first.fork()
    assert second.run("x").text == "1"
    for child in (second, first):
        child.stop()


def test_a_fork_waits_until_the_worker_lets_it_go(python):
    child = drivers.Streams()
    near, far = socket.socketpair()
    request = python.send({"op": "fork"}, [*child.far, far.fileno()])
    far.close()
    child.close_far()
    near.settimeout(paddock.seconds(30))
    pid = int(near.recv(100))
    os.kill(pid, 0)
    near.close()    # the worker is gone: the fork ends without a word
    python.collect(request, until=("forked",))
    paddock.wait_for(lambda: not os.path.exists(f"/proc/{pid}") or b"\nState:\tZ" in status(pid), 30, "the end of the fork")
    child.close()


def test_neither_takes_a_request_before_the_worker_lets_the_fork_go(python, tmp_path):
    """A fork is ready at once; what ends the parent's group may not find it there."""
    child = drivers.Driver.__new__(drivers.Driver)
    drivers.Streams.__init__(child)
    child.language, child.process = python.language, None
    near, far = socket.socketpair()
    request = python.send({"op": "fork"}, [*child.far, far.fileno()])
    far.close()
    child.close_far()
    near.settimeout(paddock.seconds(30))
    child.pid, child.join = int(near.recv(100)), near
    assert child.event()[0]["type"] == "ready"

    look = {"op": "run", "code": f"import os; os.path.exists({str(tmp_path / 'moved')!r})"}
    of_child, of_parent = child.send(look), python.send(look)
    time.sleep(0.2)     # time enough for one that does not wait
    (tmp_path / "moved").touch()
    near.send(b"g")
    python.collect(request, until=("forked",))
    assert child.collect(of_child).text == "True"
    assert python.collect(of_parent).text == "True"
    child.stop()


def status(pid):
    with open(f"/proc/{pid}/status", "rb") as file:
        return file.read()


def test_the_parent_tells_the_end_of_a_fork(python):
    child = python.fork()
    os.kill(child.pid, signal.SIGKILL)
    assert child.join.recv(100) == b"end 9\n"
    assert child.join.recv(100) == b""
    child.stop()
    child = python.fork()
    child.send({"op": "run", "code": "import os; os._exit(3)"})
    assert child.join.recv(100) == b"end 768\n"
    child.stop()


def test_a_fork_outlives_its_parent(python):
    child = python.fork()
    python.process.kill()
    python.process.wait()
    assert child.run("1 + 1").text == "2"
    os.kill(child.pid, signal.SIGKILL)
    assert child.join.recv(100) == b""      # nobody can tell how
    child.stop()


def test_a_fork_that_the_code_itself_reaps(python):
    child = python.fork()
    request = python.start("import os; os.wait();")
    os.kill(child.pid, signal.SIGKILL)
    python.collect(request)
    assert child.join.recv(100) == b"end lost\n"
    child.stop()


def test_a_fork_has_a_group_of_its_own_and_none_of_the_parents_descriptors(python):
    sibling = python.fork()
    child = python.fork()
    assert os.getpgid(child.pid) == child.pid != os.getpgid(python.pid)
    assert [each.run("1").text for each in (python, child)] == ["1", "1"]   # both are done with the fork
    before = len(os.listdir(f"/proc/{python.pid}/fd"))
    assert len(os.listdir(f"/proc/{child.pid}/fd")) < before
    for each in (sibling, child):
        os.kill(each.pid, signal.SIGKILL)
        each.join.recv(100)
        each.stop()
    assert python.run("1").text == "1"
    assert len(os.listdir(f"/proc/{python.pid}/fd")) == before - 4


def test_threads_refuse_a_fork_unless_it_is_forced(python):
    python.run("import threading; e = threading.Event(); t = threading.Thread(target=e.wait, daemon=True); t.start()")
    refused = python.fork()
    assert refused["type"] == "refused" and "1 threads would be lost" in refused["why"]
    child = python.fork(force=True)
    assert child.forked["threads_lost"] == 1
    cell = child.run("threading.active_count()")
    assert cell.text == "1" and cell.stderr == ""
    child.stop()


def test_a_fork_without_its_descriptors_is_refused(python):
    answer = python.collect(python.send({"op": "fork"}), until=("refused",))
    assert "needs 5 descriptors, not 0" in answer.end["why"]
    one, other = socket.socketpair()
    before = len(os.listdir(f"/proc/{python.pid}/fd"))
    answer = python.collect(python.send({"op": "fork"}, [one.fileno()] * 3), until=("refused",))
    assert "not 3" in answer.end["why"]
    assert python.run("1").text == "1"
    assert len(os.listdir(f"/proc/{python.pid}/fd")) == before
    one.close()
    other.close()


@pytest.mark.parametrize("broken", ["os.fork = lambda: 1 / 0", "os.fork = None"])
def test_code_that_replaces_what_forks(python, broken):
    python.run(f"import os; x = 5; {broken}")
    child = python.fork()
    assert child.run("x").text == "5" == python.run("x").text
    child.stop()


@pytest.mark.parametrize("broken", ["os.setsid = None", "os.dup2 = None", "os.getpid = None"])
def test_a_fork_that_fails_half_way_is_no_second_driver(python, broken):
    python.run(f"import os; x = 5; {broken}")
    assert python.fork()["type"] == "forked"    # and has ended
    assert [python.run("x").text for _ in range(10)] == ["5"] * 10


def test_forks_draw_other_numbers(python):
    python.run("import random")
    drawn = set()
    for _ in range(3):
        child = python.fork()
        drawn.add(child.run("random.random()").text)
        child.stop()
    assert len(drawn) == 3


def test_a_fork_awaits_with_a_loop_of_its_own(python):
    python.run("import asyncio\nawait asyncio.sleep(0)")
    child = python.fork()
    assert child.run("await asyncio.sleep(0.01, 'child')").text == "'child'"
    assert python.run("await asyncio.sleep(0.01, 'parent')").text == "'parent'"
    child.stop()


def test_loggers_of_the_parent_write_to_the_streams_of_the_fork(python):
    python.run("import logging, sys\nlog = logging.getLogger(); log.addHandler(logging.StreamHandler(sys.stderr))")
    child = python.fork()
    assert child.run("log.warning('from the fork')").stderr == "from the fork\n"
    assert python.run("log.warning('from the parent')").stderr == "from the parent\n"
    child.stop()


def warm(start, site, names=("fractions",)):
    """A zygote whose own libraries would be in `site`."""
    zygote = start("python", env={"PYTHONUSERBASE": str(site)})
    answer = zygote.collect(zygote.send({"op": "import", "modules": list(names)}))
    return zygote, answer


def test_a_fresh_fork_is_a_context_of_its_own(start, tmp_path):
    zygote, answer = warm(start, tmp_path)
    assert answer.end["ok"]
    fresh = {"env": {"ONLY": "this", "TZ": "Etc/GMT-3"}, "cwd": ["/no/such", "/", str(tmp_path)]}
    child = zygote.fork(fresh=fresh)
    found = child.run("import os, sys, time; dict(os.environ), os.getcwd(), 'fractions' in sys.modules, time.tzname[0]")
    assert found.text == "({'ONLY': 'this', 'TZ': 'Etc/GMT-3'}, '/', True, '+03')"
    assert found.order[0][1]["count"] == 1
    child.stop()
    refused = zygote.fork(fresh={"env": {}, "cwd": ["/no/such"]})
    assert "/no/such" in refused["why"]
    zygote.fork(fresh=fresh).stop()


def test_a_module_that_is_missing_is_told_and_the_rest_is_there(start, tmp_path):
    zygote, answer = warm(start, tmp_path, ["no_such_module", "fractions"])
    assert answer.error["name"] == "ModuleNotFoundError" and not answer.end["ok"]
    child = zygote.fork(fresh={"env": {}, "cwd": ["/"]})
    assert child.run("import sys; 'fractions' in sys.modules").text == "True"
    child.stop()


def test_a_zygote_whose_libraries_are_old_refuses_and_ends(start, tmp_path):
    zygote, _ = warm(start, tmp_path)
    zygote.fork(fresh={"env": {}, "cwd": ["/"]}).stop()
    version = ".".join(zygote.ready["version"].split(".")[:2])
    (tmp_path / "lib" / f"python{version}" / "site-packages").mkdir(parents=True)
    refused = zygote.fork(fresh={"env": {}, "cwd": ["/"]})
    assert "libraries" in refused["why"]
    assert zygote.process.wait(paddock.seconds(30)) == 0


def test_many_forks_leave_nothing(python):
    before = len(os.listdir(f"/proc/{python.pid}/fd"))
    for _ in range(paddock.rounds(30, 500)):
        child = python.fork()
        os.kill(child.pid, signal.SIGKILL)
        assert child.join.recv(100) == b"end 9\n"
        child.stop()
    assert python.run("1").text == "1"
    assert len(os.listdir(f"/proc/{python.pid}/fd")) == before


def test_a_collection_in_a_fork_leaves_the_memory_shared(python):
    """gc.freeze before the fork: without it the first collection writes to every object."""
    python.run("import gc\nkept = [[n] for n in range(400000)]", limit=90)
    child = python.fork()
    code = "gc.collect(); int([l for l in open('/proc/self/smaps_rollup') if l.startswith('Private_Dirty')][0].split()[1])"
    frozen = int(child.run(code, limit=90).text)
    child.stop()
    child = python.fork()
    thawed = int(child.run("gc.unfreeze(); " + code, limit=90).text)
    child.stop()
    assert frozen < thawed / 2, (frozen, thawed)


# ---- huge pages ----

FILL = """
import mmap
def fill(mib):
    "Memory in pages of 4 KiB, whatever the host's setting is, that may be put into huge ones."
    found = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    found.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, len(found), 4096): found[at] = at >> 12 & 255
    found.madvise(mmap.MADV_HUGEPAGE)
    return found
def is_whole(data): return all(data[at] == at >> 12 & 255 for at in range(0, len(data), 4096))
"""


def mebibytes(pid, name):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return int(re.search(name + r":\s*(\d+) kB", file.read())[1]) >> 10


def gives_huge_pages():
    """Whether this kernel, in this moment, puts half of 64 MiB into huge pages when it is asked as the driver asks it."""
    size = 64 << 20
    with mmap.mmap(-1, size + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for at in range(0, len(area), 4096):
            area[at] = 1
        first = ctypes.c_char.from_buffer(area)
        start = -(-ctypes.addressof(first) // (2 << 20)) * (2 << 20)
        given = [ctypes.CDLL(None).madvise(ctypes.c_size_t(at), ctypes.c_size_t(2 << 20), 25) == 0
                 for at in range(start, start + size, 2 << 20)]
        del first
        return given.count(True) >= 16


def await_huge_pages(pid, least):
    """Until so many MiB are in huge pages, or the kernel does not give any: it need not, and then nothing is lost.

    The kernel's own khugepaged does 16 MiB in ten seconds: in the time given here it does not get as far.
    """
    asked = time.monotonic() + 2

    def look():
        nonlocal asked
        if mebibytes(pid, "AnonHugePages") >= least:
            return True
        if time.monotonic() < asked:
            return False
        asked = time.monotonic() + 2
        return not gives_huge_pages()

    paddock.wait_for(look, 20, f"{least} MiB in huge pages")


def test_memory_is_in_huge_pages_when_a_context_waits(python):
    """What the kernel copies for a fork are entries of pages."""
    python.run(FILL)
    python.run("data = fill(64)")
    await_huge_pages(python.pid, 48)
    assert python.run("is_whole(data)").text == "True"
    child = python.fork()
    assert child.run("is_whole(data)").text == "True"
    child.stop()

    python.run("more = fill(96)")
    await_huge_pages(python.pid, 128)
    assert python.run("is_whole(data) and is_whole(more)").text == "True"


def test_what_is_shared_with_a_fork_stays_shared(python):
    """Put into huge pages it would be there twice."""
    python.run(FILL)
    child = python.fork(behind=python.send({"op": "run", "code": "data = fill(64)"}))  # no time for huge pages between
    assert mebibytes(child.pid, "AnonHugePages") < 32, "the control: there is something that could be put together"
    before = mebibytes(python.pid, "AnonHugePages")
    python.run("more = fill(64)")
    await_huge_pages(python.pid, before + 48)
    time.sleep(0.5)     # time enough for a driver that does not look
    assert mebibytes(child.pid, "Shared_Dirty") >= 56
    assert child.run("is_whole(data)").text == "True" and python.run("is_whole(data) and is_whole(more)").text == "True"
    child.stop()
