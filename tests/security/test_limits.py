"""Limits: processes, memory, space, files, CPU. Each attack is contained, the reason is told, the
host and a neighbour do not notice."""

import os
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock
from paddock_testing.battery import COMBINATIONS

from .limit_checks import PROBE, attack, check_gone, check_host, check_neighbour, reported

MIB = 1 << 20


def run_probe(fixtures, *command, **options):
    return paddock.run_record([PROBE, *command], binds=fixtures.binds(), **options)


# Processes and threads


@pytest.mark.parametrize("profile,user", COMBINATIONS)
def test_fork_bomb(fixtures, profile, user):
    with attack(fixtures, [PROBE, "bomb"], pids=128, profile=profile, user=user) as (_, ns, _line):
        paddock.wait_for(lambda: len(host.in_pid_namespace(ns)) >= 100, 8, "the bomb has grown")
        assert len(host.in_pid_namespace(ns)) <= 128
        check_host()
        check_neighbour()
        assert len(host.in_pid_namespace(ns)) <= 128


def test_fork_bomb_ends_at_the_time_limit(fixtures):
    result = run_probe(fixtures, "bomb", pids=128, timeout="1s", limit=10)
    assert result.status == 124, result.explain()
    assert result.record["timed_out"] is True
    assert result.record["stopped_by"] == "timeout", result.explain()
    assert result.took < paddock.seconds(4), result.explain()


def test_processes_stop_at_the_limit_and_the_reason_is_told(fixtures):
    result = run_probe(fixtures, "forks", 300, 0, pids=64)
    made, error = reported(result, "forks")
    assert 40 <= made < 64, result.explain()
    assert error == "EAGAIN", result.explain()
    assert result.record["stopped_by"] == "pids", result.explain()


def test_below_the_limit_nothing_is_said(fixtures):
    result = run_probe(fixtures, "forks", 20, 0, pids=64)
    assert reported(result, "forks")[0] == 20
    assert result.record["stopped_by"] is None, result.explain()


def test_a_hundred_thousand_threads(fixtures):
    result = run_probe(fixtures, "threads", 100000, pids=256)
    made, _ = reported(result, "threads")
    assert made < 256, result.explain()
    assert result.status == 1
    check_host()
    check_neighbour()


def test_default_limit_of_processes(fixtures):
    result = run_probe(fixtures, "forks", 300, 0)
    assert 200 <= reported(result, "forks")[0] < 256, result.explain()


def test_zombies_are_charged_and_orphans_reaped(fixtures):
    count = paddock.scaled_down(5000, 300)
    result = run_probe(fixtures, "zombies", count, pids=128, limit=15)
    made, _ = reported(result, "zombies")
    assert made < 128, result.explain()
    refused, _ = reported(result, "orphans-refused")
    # The bound is for an idle machine, as those of times are. Without init nearly all would be refused.
    assert refused <= count // 100 * paddock.seconds(1), "init does not reap as fast as orphans come"
    check_host()


# Memory


@pytest.mark.parametrize("profile,user", COMBINATIONS)
def test_memory_bomb(fixtures, profile, user):
    result = run_probe(fixtures, "eat", 4096 * MIB, memory="64M", profile=profile, user=user)
    assert result.status == 137, result.explain()
    assert result.record["stopped_by"] == "oom", result.explain()
    assert result.record["timed_out"] is False
    check_host()
    check_neighbour()


def test_memory_below_the_limit(fixtures):
    result = run_probe(fixtures, "eat", 32 * MIB, memory="64M")
    assert result.status == 0 and result.record["stopped_by"] is None, result.explain()


def run_where_the_shell_survives(line, **options):
    """The record of a shell in whose memory a child is too large. Whom it ends is the kernel's choice: on a busy
    machine it may take the shell while the child is still on its way out. Then it is asked again."""
    for _ in range(5):
        result = paddock.run_record(["/bin/sh", "-c", line], memory="64M", **options)
        if result.record["stopped_by"] != "oom":
            break
    return result


def test_oom_of_a_child_ends_that_child_alone(fixtures):
    """Its shell goes on and can tell; the command as a whole was not stopped by anything."""
    result = run_where_the_shell_survives(f"{PROBE} eat {1024 * MIB}; echo after $?",
                                          binds=fixtures.binds())
    assert result.record["stdout"] == "after 137\n", result.explain()
    assert "Killed" in result.record["stderr"], result.explain()
    assert (result.record["exit_code"], result.record["stopped_by"]) == (0, None), result.explain()


@pytest.mark.parametrize("where", ["/dev/shm/f", "/tmp/f", "/workspace/f"])
def test_files_in_memory_are_charged(fixtures, where):
    """A root in memory has half of the memory at most, so that a full one answers ENOSPC and ends
    nobody, however large its disk may be."""
    result = run_probe(fixtures, "fill", where, 4096 * MIB, memory="64M", disk="1G")
    written, error = reported(result, "fill")
    assert error == "ENOSPC" and result.record["stopped_by"] == "disk", result.explain()
    assert 24 * MIB <= written <= 32 * MIB, result.explain()
    check_host()
    check_neighbour()


def test_files_in_memory_are_memory(fixtures):
    """The control of that: what lies in files is missing for programs."""
    line = f"{PROBE} fill /tmp/f {28 * MIB}; {PROBE} eat {48 * MIB}; echo $?; rm /tmp/f; {PROBE} eat {48 * MIB}"
    result = run_where_the_shell_survives(line, disk="1G", binds=fixtures.binds())
    assert "\n137\n" in result.record["stdout"], result.explain()
    assert result.record["exit_code"] == 0, result.explain()


def test_memfd_and_segments_are_charged(fixtures):
    """Memory without a name counts as well."""
    code = ("import os\nm = os.memfd_create('x')\n"
            "for i in range(4096): os.write(m, bytes(1 << 20))")
    result = paddock.run_record(["/usr/bin/python3", "-c", code], memory="64M")
    assert result.status == 137 and result.record["stopped_by"] == "oom", result.explain()


# Space and files


@pytest.mark.parametrize("profile,user", COMBINATIONS)
def test_disk_fill(fixtures, profile, user):
    before = host.free_bytes()
    result = run_probe(fixtures, "fill", "/tmp/big", 1 << 40, disk="16M", profile=profile, user=user)
    written, error = reported(result, "fill")
    assert error in ("ENOSPC", "EDQUOT"), result.explain()
    assert 8 * MIB <= written <= 16 * MIB, result.explain()
    assert result.record["stopped_by"] == "disk", result.explain()
    assert host.free_bytes() > before - 512 * MIB
    check_neighbour()


def test_space_is_one_budget_for_all_directories(fixtures):
    """Not one budget per directory: /tmp, /workspace, /home/user and /var share it."""
    line = "; ".join(f"{PROBE} fill {d}/f {64 * MIB}"
                     for d in ("/tmp", "/workspace", "/home/user", "/var/tmp"))
    result = paddock.run(["/bin/sh", "-c", line], disk="16M", binds=fixtures.binds())
    total = sum(int(row.split()[1]) for row in result.out.splitlines() if row.startswith("fill"))
    assert total <= 17 * MIB, result.explain()


@pytest.mark.parametrize("user", ["user", "root"])
def test_inode_fill(fixtures, user):
    before = host.free_inodes()
    result = run_probe(fixtures, "files", "/tmp", 1000000, files=2000, user=user)
    made, error = reported(result, "files")
    assert error in ("ENOSPC", "EDQUOT"), result.explain()
    # The skeleton of the root has room of its own on top.
    assert 1000 <= made <= 2064, result.explain()
    assert host.free_inodes() > before - 20000
    check_neighbour()


def test_huge_sparse_and_allocated_files(fixtures):
    before = host.free_bytes()
    for size in (1 << 60, (1 << 63) - 1):
        result = run_probe(fixtures, "extend", "/tmp/hole", size, disk="16M")
        assert result.status == 0, f"a hole takes no space\n{result.explain()}"
    result = run_probe(fixtures, "allocate", "/tmp/blocks", 1 << 40, disk="16M")
    assert result.status == 1, result.explain()
    assert host.free_bytes() > before - 512 * MIB
    check_neighbour()


def test_file_size_limit(fixtures):
    result = run_probe(fixtures, "fill", "/tmp/f", 64 * MIB, file_size="1M")
    assert result.status != 0, result.explain()
    result = paddock.run(["/bin/sh", "-c", "trap '' XFSZ; head -c 8M /dev/zero > f; stat -c %s f"],
                         file_size="1M")
    assert result.out.strip() == str(MIB), result.explain()


def test_directories_of_great_depth(fixtures):
    """A hundred thousand directories in one another, and the sandbox still goes away quickly."""
    depth = paddock.scaled_down(100000, 5000)
    result = run_probe(fixtures, "deep", "/workspace", depth, files=200000, limit=30)
    made, error = reported(result, "deep")
    assert made == depth, (error, result.explain())
    check_neighbour()


# CPU


def test_cpu_quota_holds(fixtures):
    result = run_probe(fixtures, "spin", 2, 4, cpu="0.5")
    burnt, _ = reported(result, "spin")
    assert burnt <= result.took * 1000 * 0.5 * 1.35 + 100, result.explain()
    # What the command took to start is counted, too: much, where the processor is emulated.
    start = paddock.run_record(["/bin/true"]).record["cpu_time_ms"]
    assert abs(result.record["cpu_time_ms"] - burnt) <= 0.2 * burnt + 50 + 2 * start, result.explain()


def cpu_seconds(namespace):
    """What the processes of a jail have burnt up to now."""
    ticks = 0
    for pid in host.in_pid_namespace(namespace):
        fields = host.read_proc(pid, "stat").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_spinners_leave_cpu_to_the_neighbour(fixtures):
    """Eight threads that spin have half a processor together, whoever else wants one."""
    with attack(fixtures, [PROBE, "spin", 300, 8], cpu="0.5") as (_, ns, _line):
        start, before = time.monotonic(), cpu_seconds(ns)
        while time.monotonic() - start < 1:
            check_host()
            check_neighbour()
        took, burnt = time.monotonic() - start, cpu_seconds(ns) - before
        assert burnt > 0, "nobody spins"
        assert burnt <= took * 0.5 * 1.35 + 0.1, f"{burnt} s of cpu time in {took} s"


# Controls: without the limit the same commands go through


CONTROLS = [
    ("pids", ("forks", 300, 0), {"pids": 64}),
    ("memory", ("eat", 128 * MIB), {"memory": "32M"}),
    ("disk", ("fill", "/tmp/f", 64 * MIB), {"disk": "8M"}),
    ("files", ("files", "/tmp", 1000), {"files": 200}),
]


@pytest.mark.parametrize("wall,command,limits", CONTROLS, ids=[c[0] for c in CONTROLS])
def test_limit_stops_it_and_without_the_limit_it_works(fixtures, wall, command, limits):
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")
    held = run_probe(fixtures, *command, binary=paddock.PADDOCK_WEAK, **limits)
    assert held.status != 0, held.explain()
    free = run_probe(fixtures, *command, binary=paddock.PADDOCK_WEAK,
                     env={"PADDOCK_WALL_OFF": wall}, **limits)
    assert free.status == 0, free.explain()


def test_cpu_without_the_limit(fixtures):
    """The limit is far below what the scheduler gives to two spinners on the busiest machine: only
    the limit can hold them there."""
    if not os.path.exists(paddock.PADDOCK_WEAK):
        pytest.skip(f"no test build with weak walls at {paddock.PADDOCK_WEAK}")
    held = run_probe(fixtures, "spin", 2, 2, cpu="0.02", binary=paddock.PADDOCK_WEAK)
    assert reported(held, "spin")[0] <= held.took * 1000 * 0.02 * 1.35 + 20, held.explain()
    free = run_probe(fixtures, "spin", 2, 2, cpu="0.02", binary=paddock.PADDOCK_WEAK,
                     env={"PADDOCK_WALL_OFF": "cpu"})
    assert reported(free, "spin")[0] > 2000 * 0.02 * 1.8, free.explain()
