"""`paddock keeper`: one keeper for several runs, by its socket."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import threading

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import Terminal, call, check_gone, check_one_line, new_word, pause


def sh(keeper, line, **options):
    return paddock.run(["/bin/sh", "-c", line], env=keeper.env, **options)


def test_runs_go_through_the_keeper(keeper):
    word = new_word()
    with paddock.background(["sleep", word], env=keeper.env):
        pid = paddock.wait_for(lambda: host.with_word(word), 5, "it runs")[0]
        assert host.parent(host.jail_init(pid)) == keeper.pid
    check_gone(word)


def test_several_runs_one_after_the_other(keeper):
    for n in range(10):
        result = sh(keeper, f"echo {n}; echo x >/workspace/f; ls /tmp; exit {n}")
        assert (result.status, result.out) == (n, f"{n}\n"), result.explain()


def test_several_runs_at_once(keeper, tmp_path):
    """Each waits for all others: one after the other none would end."""
    tmp_path.chmod(0o777)
    results = []

    def one(n):
        line = (f"touch /d/{n}; while [ $(ls /d | wc -l) -lt 8 ]; do sleep 0.05; done;"
                f" cat /proc/sys/kernel/hostname; exit {n}")
        results.append((n, sh(keeper, line, limit=30, binds=[f"{tmp_path}:/d:rw"])))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for n, r in results) == sorted(r.status for _, r in results) == list(range(8))
    assert {r.out for _, r in results} == {"sandbox\n"}


def test_everything_works_as_without_a_keeper(keeper, tmp_path):
    (tmp_path / "f").write_text("bound")
    tmp_path.chmod(0o755)
    assert sh(keeper, "cat /d/f", binds=[f"{tmp_path}:/d"]).out == "bound"
    assert sh(keeper, "sleep 60", timeout=f"{pause(0.3)}s").status == 124
    assert sh(keeper, "no-such-command").status == 127
    assert sh(keeper, "head -c 20M /dev/zero >f", disk="4M").status == 1
    result = paddock.run_record(["/bin/echo", "x"], env=keeper.env)
    assert (result.record["stdout"], result.record["stopped_by"]) == ("x\n", None)
    if os.geteuid() == 0:
        assert sh(keeper, "sudo id -u", profile="dev").out == "0\n"
        record = paddock.run_record(["/usr/bin/tail", "/dev/zero"], env=keeper.env, memory="32M")
        assert record.record["stopped_by"] == "oom"
    with Terminal.run(["/usr/bin/tty"], env=keeper.env) as t:
        assert t.wait() == 0 and t.seen.startswith(b"/dev/pts/")


def test_limits_of_one_run_are_not_the_next_ones(keeper):
    """What was prepared with the usual limits must not be used for others, nor the other way."""
    for disk, size in (("4M", 4), (None, 256), ("8M", 8), (None, 256)):
        line = "df -m --output=size / | tail -1"
        assert int(sh(keeper, line, disk=disk).out) == size


def test_what_the_kernel_did_to_one_run_is_not_told_of_the_next(keeper):
    """A keeper uses memory groups again: neither a kill in one of them nor its limit is another run's."""
    for _ in range(2):
        bomb = ["python3", "-c", "bytearray(200 << 20)"]
        stopped = paddock.run_record(bomb, env=keeper.env, memory="32M")
        assert stopped.record["stopped_by"] == "oom", stopped.explain()
        assert paddock.run(bomb, env=keeper.env, memory="512M").status == 0
        for _ in range(3):
            result = paddock.run_record(["/bin/sh", "-c", "exit 5"], env=keeper.env)
            assert (result.status, result.record["stopped_by"]) == (5, None), result.explain()


def test_environment_and_directory_are_the_callers(keeper, tmp_path):
    """The keeper has others: what is relative is relative to the caller."""
    (tmp_path / "here").mkdir()
    result = call("run", "--bind", "here:/here", "--env", "A=b", "--", "sh", "-c",
                  "ls -d /here; echo $A", env=keeper.env, cwd=tmp_path)
    assert result.stdout == "/here\nb\n", result.stderr


def test_socket_is_for_its_owner_only(keeper):
    mode = os.stat(keeper.socket).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_keeper_and_all_its_jails(sig):
    words = [new_word() for _ in range(3)]
    keeper = paddock.Keeper().wait_ready()
    runs = []
    try:
        for word in words:
            line = f"trap '' TERM INT HUP; setsid sleep {word} & sleep {word}"
            runs.append(subprocess.Popen(
                paddock.jail_argv(["/bin/bash", "-c", line]), stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE, env=paddock.clean_environment(keeper.env)))
            paddock.wait_for(lambda: len(host.with_word(word)) >= 2, 5, "it runs")
        keeper.kill(sig)
        assert keeper.process.returncode == 0
        for word in words:
            assert not host.with_word(word), "gone when the keeper is"
        for run in runs:
            _, err = run.communicate(timeout=paddock.seconds(5))
            assert run.returncode == 125 and err.count(b"\n") == 1, (run.returncode, err)
        assert not os.path.exists(keeper.socket), "the socket is removed"
    finally:
        for run in runs:
            paddock.end(run)
        keeper.close()


def test_kill_of_the_keeper_ends_all_its_jails():
    word = new_word()
    keeper = paddock.Keeper().wait_ready()
    try:
        with paddock.background(["sleep", word], env=keeper.env) as run:
            paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
            keeper.kill()
            check_gone(word)
            assert run.wait(timeout=paddock.seconds(5)) == 125
            err = run.stderr.read()
            assert err.count(b"\n") == 1 and b"keeper" in err, err
    finally:
        keeper.close()


def test_client_that_is_killed_takes_its_jail_along(keeper):
    words = new_word(), new_word()
    with paddock.background(["sleep", words[0]], env=keeper.env) as first, \
            paddock.background(["sleep", words[1]], env=keeper.env):
        for word in words:
            paddock.wait_for(lambda: host.with_word(word), 5, "it runs")
        first.kill()
        first.wait()
        check_gone(words[0])
        assert host.with_word(words[1]), "the other one's jail goes on"
    assert sh(keeper, "echo fine").out == "fine\n"


def test_second_keeper_on_the_socket_is_refused(keeper):
    check_one_line(call("keeper", "--socket", keeper.socket, limit=5), 125, keeper.socket)
    assert sh(keeper, "echo fine").out == "fine\n", "the first one is not disturbed"


def test_socket_of_a_dead_keeper_is_replaced(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(str(path))
    with KeeperAt(path) as keeper:
        assert sh(keeper, "echo fine").out == "fine\n"
        keeper.process.kill()
        keeper.process.wait()
    assert path.exists()
    with KeeperAt(path) as keeper:
        assert sh(keeper, "echo fine").out == "fine\n"


def test_file_that_is_no_socket_is_not_replaced(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    check_one_line(call("keeper", "--socket", path, limit=5), 125, str(path)[:60])
    assert path.read_text() == "data"


@pytest.mark.parametrize("kind", ["nothing", "stale", "file", "empty", "too long"])
def test_keeper_that_is_not_there_is_a_clear_error(kind, tmp_path):
    path = str(tmp_path / "s")
    if kind == "stale":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
            stale.bind(path)
    elif kind == "file":
        (tmp_path / "s").touch()
    elif kind == "too long":
        path = "/tmp/" + "x" * 200
    elif kind == "empty":
        path = ""
    result = paddock.run(["/bin/echo", "ran"], env={"PADDOCK_KEEPER": path})
    assert result.status in (2, 125), result.explain()
    check_one_line(result, result.status, "keeper", path[:60])


def test_socket_in_a_directory_that_is_not_there():
    check_one_line(call("keeper", "--socket", "/no/such/dir/s", limit=5), 125, "/no/such/dir/s")


def test_path_that_is_too_long_for_a_socket():
    result = call("keeper", "--socket", "/tmp/" + "x" * 200, limit=5)
    assert result.returncode in (2, 125)
    check_one_line(result, result.returncode, "/tmp/xxx")


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.0\r\n\r\n", bytes(64), b"\xff" * 4000])
def test_nonsense_on_the_socket_harms_nobody(keeper, data):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(keeper.socket)
        s.send(data)
        assert sh(keeper, "echo fine").out == "fine\n"
    assert keeper.process.poll() is None


def test_keeper_does_not_grow_with_the_runs(keeper):
    def held():
        return host.descriptor_kinds(keeper.pid)

    for _ in range(5):
        sh(keeper, "true")
    # When nothing changes for a while the last jail is swept and the prepared parts are there again.
    before = paddock.settled(held)
    for _ in range(4):  # a descriptor of whatever came last would not be held each time
        for _ in range(5):
            sh(keeper, "true")
        paddock.wait_for(lambda: held() == before, 20, f"it holds no more than before: {before}")


def test_prepared_namespaces_are_not_shared(keeper):
    words = [new_word() for _ in range(6)]
    with contextlib.ExitStack() as stack:
        for word in words:
            stack.enter_context(paddock.background(["sleep", word], env=keeper.env))
        pids = [paddock.wait_for(lambda w=word: host.with_word(w), 5, "it runs")[0]
                for word in words]
        for kind in ("user", "net", "pid", "mnt", "ipc", "uts"):
            seen = {host.namespace(pid, kind) for pid in pids}
            assert len(seen) == 6 and "" not in seen, kind


def test_builders_and_kits_can_be_chosen(tmp_path):
    with KeeperAt(tmp_path / "s", "--builders", "1", "--kits", "0") as keeper:
        assert sh(keeper, "echo fine").out == "fine\n"
        assert json.loads(sh(keeper, "echo x", json_record=True).out)["stdout"] == "x\n"


class KeeperAt:
    """A keeper on a socket that the test chooses."""

    def __init__(self, path, *options):
        self.env = {"PADDOCK_KEEPER": str(path)}
        self.path = str(path)
        self.process = subprocess.Popen(
            [paddock.PADDOCK, "keeper", "--socket", self.path, *options],
            stdin=subprocess.DEVNULL, env=paddock.clean_environment())

    def answers(self):
        assert self.process.poll() is None, "the keeper ended"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            return s.connect_ex(self.path) == 0

    def __enter__(self):
        paddock.wait_for(self.answers, 5, "the keeper listens")
        return self

    def __exit__(self, *_):
        paddock.end(self.process)


def test_builders_that_die_at_once_are_reported(keeper):
    """Nobody waits for ever, nothing spins, and it works again when they live."""
    stop = threading.Event()

    def hunt():
        """Whoever is a child but no builder is spared."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        while not stop.is_set():
            with open(f"/proc/{keeper.pid}/task/{keeper.pid}/children", encoding="ascii") as f:
                for pid in f.read().split():
                    with contextlib.suppress(OSError):
                        with open(f"/proc/{pid}/comm", encoding="ascii") as comm:
                            if comm.read() != "paddock-sweeper\n":
                                os.kill(int(pid), signal.SIGKILL)

    def is_reported():
        """A builder may have been quicker than the hunter, who then has the jail's first process."""
        result = sh(keeper, "true", limit=30)
        return result.status == 125 and "builder" in result.err

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        paddock.wait_for(is_reported, 60, "a run is told that the builders die")
    finally:
        stop.set()
        hunter.join()
    paddock.wait_for(lambda: sh(keeper, "echo back", limit=30).out == "back\n", 30, "it works again")
