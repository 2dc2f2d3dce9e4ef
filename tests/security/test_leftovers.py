"""Nothing stays behind: after many sandboxes, and after kill -9 of any part at any moment."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.leftovers import Snapshot, check_nothing_left, executable

from .limit_checks import new_word

pytestmark = pytest.mark.alone  # it counts processes, mounts, cgroups and loop devices of the host
CYCLES = int(os.environ.get("PADDOCK_TEST_CYCLES", paddock.scaled_down(1000, 50)))
ONE_SHOT_CYCLES = int(os.environ.get("PADDOCK_TEST_ONE_SHOTS", paddock.scaled_down(100, 10)))
KILLS = int(os.environ.get("PADDOCK_TEST_KILLS", paddock.scaled_down(100, 10)))
SEED = int(os.environ.get("PADDOCK_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    """A copy of the program, so that its processes are known from those of other test runs."""
    directory = tmp_path_factory.mktemp("program")
    copy = directory / "paddock"
    shutil.copy(paddock.PADDOCK, copy)
    copy.chmod(0o755)
    with paddock.Keeper(binary=str(copy)) as keeper:  # makes what is made once: directories, locks
        paddock.run_ok(["/bin/true"], binary=str(copy), env=keeper.env)
    yield str(copy)
    for pid in host.pids():  # what a failed test found must not disturb the next ones
        if executable(pid) == str(copy):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def cycle(binary, count, env=None, workers=2):
    """`count` sandboxes, each of which writes a file and ends; returns how many failed."""
    failures = []
    left = list(range(count))

    def work():
        while True:
            try:
                left.pop()
            except IndexError:
                return
            result = paddock.run(["/bin/sh", "-c", "echo x > /tmp/f; exit 5"], binary=binary,
                                 env=env)
            if result.status != 5:
                failures.append(result.explain())

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return failures


def outside_of_jails(keeper_pid):
    own = host.namespace(os.getpid(), "pid")
    return [p for p in host.descendants(keeper_pid) if host.namespace(p, "pid") == own]


def inits(keeper_pid):
    return {p for p in host.descendants(keeper_pid) if host.is_jail_init(p)}


def test_what_is_there_is_found(binary):
    """The control: what a keeper has while it lives, jails in waiting among it, would be seen."""
    before = Snapshot.take(binary)
    with paddock.Keeper(binary=binary) as keeper:
        waiting = paddock.settled(lambda: inits(keeper.pid))
        now = Snapshot.take(binary)
        assert waiting and waiting | {keeper.pid} <= now.processes
        assert {"processes", "cgroups", "namespaces"} <= set(now.new_since(before))
    check_nothing_left(before, binary)


@pytest.mark.slow
def test_a_thousand_sandboxes_through_one_keeper(binary):
    before = Snapshot.take(binary)
    with paddock.Keeper(binary=binary) as keeper:
        assert not cycle(binary, 20, keeper.env)
        paddock.settled(lambda: (host.descriptor_kinds(keeper.pid), len(outside_of_jails(keeper.pid))))
        warm = Snapshot.take(binary)
        kinds = host.descriptor_kinds(keeper.pid)
        helpers = len(outside_of_jails(keeper.pid))
        rss = host.rss(keeper.pid)

        failures = cycle(binary, CYCLES, keeper.env)
        assert not failures, f"{len(failures)} of {CYCLES} failed, the first:\n{failures[0]}"

        def quiet():
            now = Snapshot.take(binary)
            return (host.descriptor_kinds(keeper.pid) == kinds
                    and len(outside_of_jails(keeper.pid)) == helpers
                    and len(now.cgroups) <= len(warm.cgroups)
                    and now.dead_cgroups <= warm.dead_cgroups + 8
                    and len(now.processes) <= len(warm.processes)
                    and not now.mounts - warm.mounts and not now.files - warm.files)

        deadline = time.monotonic() + paddock.seconds(30)
        while not quiet():
            now = Snapshot.take(binary)
            assert time.monotonic() < deadline, (
                f"not as before {CYCLES} cycles: descriptors {kinds} -> "
                f"{host.descriptor_kinds(keeper.pid)}, helpers {helpers} -> "
                f"{len(outside_of_jails(keeper.pid))}, cgroups {len(warm.cgroups)} -> "
                f"{len(now.cgroups)}, dead {warm.dead_cgroups} -> {now.dead_cgroups}, "
                f"new {now.new_since(warm)}")
            time.sleep(0.2)
        assert host.rss(keeper.pid) - rss < 1 << 20, "the keeper's memory grows"
    check_nothing_left(before, binary)


def test_a_hundred_one_shot_runs(binary):
    before = Snapshot.take(binary)
    failures = cycle(binary, ONE_SHOT_CYCLES)
    assert not failures, failures[0]
    check_nothing_left(before, binary)


@pytest.mark.parametrize("options", [{}, {"profile": "dev", "user": "root"}, {"network": "host"},
                                     {"timeout": "50ms"}, {"memory": "8M"}],
                         ids=["default", "dev-root", "network-host", "timeout", "out-of-memory"])
def test_each_kind_of_end_leaves_nothing(fixtures, binary, options):
    before = Snapshot.take(binary)
    command = ["/bin/sh", "-c", "head -c 1M /dev/zero > /tmp/f; (sleep 600 &); sleep 0.2"]
    if "memory" in options:
        command = ["/opt/attack/probe", "eat", 1 << 30]
    for _ in range(5):
        paddock.run(command, binary=binary, binds=fixtures.binds(), **options)
    check_nothing_left(before, binary)


def test_failed_creates_leave_nothing(binary, tmp_path):
    """A sandbox that cannot be made is taken apart as well."""
    before = Snapshot.take(binary)
    for options in ({"root": tmp_path / "none"}, {"binds": ["/no/such/place:/opt/x"]},
                    {"workdir": "/no/such/place"}, {"user": "nobody-there"}):
        for _ in range(3):
            result = paddock.run(["/bin/true"], binary=binary, **options)
            assert result.status != 0, result.explain()
    result = paddock.run(["/no/such/program"], binary=binary)
    assert result.status == 127, result.explain()
    check_nothing_left(before, binary)


# kill -9 at random points


def roles(top, binary):
    """The parts of one run by role, as far as they are there at this moment."""
    own = host.namespace(os.getpid(), "pid")
    found = {"cli": [top], "outside": [], "init": [], "command": []}
    for pid in host.descendants(top):
        namespace = host.namespace(pid, "pid")
        if namespace == own:
            found["outside"].append(pid)
        elif host.is_jail_init(pid):
            found["init"].append(pid)
        elif namespace:
            found["command"].append(pid)
    return found


def kill_one(top, binary, role, delay, chance, is_over):
    """Waits for `delay` and for a process of the role, and kills one; returns what it was, or None
    when all was over before."""
    time.sleep(delay)
    deadline = time.monotonic() + paddock.seconds(10)
    while not (candidates := roles(top, binary)[role]):
        if is_over():
            return None
        assert time.monotonic() < deadline, f"neither a process of role {role}, nor an end"
        time.sleep(0.001)
    victim = chance.choice(candidates)
    name = " ".join(host.command_line(victim)) or host.status(victim).get("Name", "")
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return f"{role} {victim} ({name})"


def check_kills(kills):
    """A test of kills in which hardly anybody was killed has shown nothing."""
    hit = [k for k in kills if k]
    assert len(hit) * 4 >= len(kills) * 3, f"only {len(hit)} of {len(kills)} rounds had a victim"


@pytest.mark.slow
@pytest.mark.parametrize("role", ["cli", "outside", "init", "command"])
def test_killing_a_part_of_a_one_shot_run(binary, role):
    """Whatever part dies at whatever moment: the call ends, nothing stays, the next one works."""
    chance = random.Random(SEED)
    before = Snapshot.take(binary)
    kills = []
    for round_number in range(max(2, KILLS // 4)):
        word = new_word()
        process = subprocess.Popen(
            paddock.jail_argv(["/bin/sh", "-c", f"sleep {chance.uniform(0.2, 0.9) * paddock.SLOW:.2f}; exit 0", word],
                              binary=binary), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=paddock.clean_environment())
        killed = kill_one(process.pid, binary, role, chance.uniform(0, 0.04) * paddock.SLOW, chance,
                          lambda p=process: p.poll() is not None)
        kills.append(killed)
        where = f"seed {SEED}, round {round_number}, killed {killed}"
        try:
            process.communicate(timeout=paddock.seconds(10))
        except subprocess.TimeoutExpired:
            paddock.end(process)
            pytest.fail(f"the call hangs: {where}")
        paddock.wait_for(lambda w=word: not host.with_word(w), 5, f"the jail is gone: {where}")
        after = paddock.run(["/bin/true"], binary=binary)
        assert after.status == 0, f"the next run fails: {where}\n{after.explain()}"
    check_kills(kills)
    check_nothing_left(before, binary)


@pytest.mark.slow
def test_killing_parts_of_a_keeper_under_load(binary):
    """A keeper with jails in every state: it gets over a dead builder, sweeper or init (a request
    that was under way may fail, the next one works); a dead keeper takes its jails along and the
    next keeper tidies up."""
    chance = random.Random(SEED)
    before = Snapshot.take(binary)
    kills = []
    for round_number in range(max(2, KILLS // 4)):
        with paddock.Keeper(binary=binary) as keeper:
            clients = [subprocess.Popen(
                paddock.jail_argv(["/bin/sleep", str(0.3 * paddock.SLOW)], binary=binary),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=paddock.clean_environment(keeper.env)) for _ in range(3)]
            role = ("outside", "init", "command")[round_number % 3]
            killed = kill_one(keeper.pid, binary, role, chance.uniform(0, 0.06) * paddock.SLOW,
                              chance, lambda c=clients: all(p.poll() is not None for p in c))
            kills.append(killed)
            where = f"seed {SEED}, round {round_number}, killed {killed}"
            for client in clients:
                try:
                    client.communicate(timeout=paddock.seconds(10))
                except subprocess.TimeoutExpired:
                    paddock.give_up(client)
                    pytest.fail(f"a client hangs: {where}")
            for _ in range(2):
                after = paddock.run(["/bin/true"], binary=binary, env=keeper.env)
                if after.status == 0:
                    break
                time.sleep(0.05)
            assert after.status == 0, f"the keeper does not recover: {where}\n{after.explain()}"
            if round_number % 2:
                with contextlib.suppress(ProcessLookupError):
                    keeper.kill()
    check_kills(kills)
    assert paddock.run(["/bin/true"], binary=binary).status == 0
    check_nothing_left(before, binary)


def test_killed_keeper_takes_its_jails_along(fixtures, binary):
    before = Snapshot.take(binary)
    word = new_word()
    with paddock.Keeper(binary=binary) as keeper:
        client = subprocess.Popen(
            paddock.jail_argv(["/opt/attack/probe", "stubborn", word], binary=binary,
                              binds=fixtures.binds()), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=paddock.clean_environment(keeper.env))
        paddock.wait_for(lambda: len(host.with_word(word)) >= 3, 5, "the jail runs")
        paddock.wait_for(lambda: len(inits(keeper.pid)) >= 2, 5, "another one waits")
        keeper.kill()
        paddock.wait_for(lambda: not host.with_word(word), 5, "the jail ended with its keeper")
        try:
            client.communicate(timeout=paddock.seconds(5))
        except subprocess.TimeoutExpired:
            paddock.give_up(client)
            pytest.fail("the client hangs after its keeper died")
        assert client.returncode == 125, client.returncode
    assert paddock.run(["/bin/true"], binary=binary).status == 0
    check_nothing_left(before, binary)


@pytest.mark.slow
def test_killing_builders_while_they_prepare(binary):
    """What a builder starts for a moment, to make a namespace, must not outlive it."""
    chance = random.Random(SEED)
    before = Snapshot.take(binary)
    for _ in range(max(2, KILLS // 4)):
        with paddock.Keeper(binary=binary) as keeper:
            deadline = time.monotonic() + paddock.span(0.15)
            killed = set()
            while time.monotonic() < deadline or not killed:
                assert time.monotonic() < deadline + paddock.seconds(10), "there is no builder"
                for pid in outside_of_jails(keeper.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
                time.sleep(chance.uniform(0, 0.003))
    assert paddock.run(["/bin/true"], binary=binary).status == 0
    check_nothing_left(before, binary)
