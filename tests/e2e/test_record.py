"""The record of `paddock run --json`, and why a command was stopped."""

import json
import os
import struct
import subprocess
import time

import pytest

from paddock_testing import host
from paddock_testing import run as paddock

from .helpers import ROOT_ONLY, check_gone, check_one_line, new_word, pause, raw

FIELDS = {"exit_code", "signal", "stdout", "stderr", "stdout_truncated", "stderr_truncated",
          "timed_out", "stopped_by", "execution_time_ms", "cpu_time_ms", "max_rss_bytes",
          "process_id", "provider", "isolation", "reason"}
CAPTURE = 1 << 20
KEPT = CAPTURE // 2


def sh(line, **options):
    return paddock.run_record(["/bin/sh", "-c", line], **options)


def test_fields_are_these_and_no_others():
    record = sh("echo out; echo err >&2; exit 3").record
    assert set(record) == FIELDS


def test_values_of_a_plain_run():
    result = sh("echo out; echo err >&2; exit 3")
    record = result.record
    assert result.status == record["exit_code"] == 3
    assert (record["stdout"], record["stderr"]) == ("out\n", "err\n")
    for name in ("signal", "stopped_by"):
        assert record[name] is None
    for name in ("stdout_truncated", "stderr_truncated", "timed_out"):
        assert record[name] is False
    assert isinstance(record["process_id"], int) and record["process_id"] > 0
    assert record["provider"] == "jail"
    assert record["isolation"] == ("full" if os.geteuid() == 0 else "basic")


def test_it_is_one_line_and_nothing_else():
    result = raw(["/bin/sh", "-c", "echo a; echo b >&2"], json_record=True)
    assert result.stdout.count(b"\n") == 1 and result.stdout.endswith(b"}\n")
    assert result.stderr == b""


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_isolation_and_its_reason():
    record = sh("exit 0").record
    assert (record["isolation"], record["reason"]) == ("full", None)
    record = sh("exit 0", network="host").record
    assert record["isolation"] == "basic" and "network" in record["reason"]
    record = sh("exit 0", provider="local").record
    assert record["isolation"] == "none" and "local" in record["reason"]


def test_signal():
    result = sh("kill -SEGV $$")
    assert result.status == result.record["exit_code"] == 139
    assert result.record["signal"] == 11


def test_input_is_passed():
    result = raw(["/bin/cat"], stdin=b"given", json_record=True)
    assert json.loads(result.stdout)["stdout"] == "given"


def test_times_and_memory():
    code = ("import time; a = bytearray(40 << 20); t = time.process_time()\n"
            "while time.process_time() < t + 0.2: pass\ntime.sleep(0.2)")
    record = paddock.run_record(["/usr/bin/python3", "-c", code]).record
    assert 400 <= record["execution_time_ms"] < paddock.seconds(10) * 1000
    assert 200 <= record["cpu_time_ms"] < record["execution_time_ms"] - 150
    assert 40 << 20 <= record["max_rss_bytes"] < 200 << 20


def test_output_that_just_fits_is_whole():
    record = sh(f"head -c {CAPTURE} /dev/zero | tr '\\0' x").record
    assert record["stdout"] == "x" * CAPTURE
    assert record["stdout_truncated"] is False


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_long_output_keeps_head_and_tail_and_says_what_is_left_out(stream):
    redirect = " >&2" if stream == "stderr" else ""
    record = sh(f"seq 400000{redirect}").record
    whole = "".join(f"{n}\n" for n in range(1, 400001))
    marker = f"\n[... {len(whole) - CAPTURE} bytes left out ...]\n"
    assert record[stream] == whole[:KEPT] + marker + whole[-KEPT:]
    assert record[f"{stream}_truncated"] is True
    other = "stderr" if stream == "stdout" else "stdout"
    assert (record[other], record[f"{other}_truncated"]) == ("", False)


def test_memory_of_the_program_does_not_grow_with_the_output():
    word = new_word()
    with paddock.background(["/bin/sh", "-c", "head -c 100M /dev/zero; exec sleep " + word],
                            json_record=True) as process:
        paddock.wait_for(lambda: any(host.command_line(p)[:1] == ["sleep"]
                                     for p in host.with_word(word)), 20, "all is written")
        assert host.rss(process.pid) < 8 << 20


@pytest.mark.parametrize("printed,expected", [
    (r"a\377b", "a\ufffdb"), (r"a\000b", "a\0b"), (r"\303\251\n\t", "\u00e9\n\t"),
    (r'"\\\033\177', '"\\\x1b\x7f'), (r"\360\237\230\200", "\U0001f600"), (r"ends\303", None),
    (r"\355\240\200", None), (r"\300\200", None), (r"\364\220\200\200", None)])
def test_output_that_is_not_utf8_still_gives_json(printed, expected):
    """What is not UTF-8 becomes U+FFFD; every other character is itself."""
    out = raw(["/usr/bin/printf", printed], json_record=True).stdout
    text = json.loads(out.decode("utf-8", errors="strict"))["stdout"]
    if expected is None:
        assert "\ufffd" in text and "\0" not in text
        text.encode("utf-8", errors="strict")
    else:
        assert text == expected


def test_cut_through_a_character_still_gives_json():
    record = sh("printf x; yes € | head -c 3000000 | tr -d '\\n'").record
    assert record["stdout_truncated"] is True
    assert record["stdout"].startswith("x€€") and record["stdout"].endswith("€")


def test_command_that_cannot_run_gives_a_message_and_no_record():
    check_one_line(paddock.run(["no-such-command"], json_record=True), 127, "no-such-command")
    check_one_line(paddock.run(["/etc/passwd"], json_record=True), 126, "/etc/passwd")


# Why it was stopped


def check_stopped(result, why, status=None):
    assert result.record["stopped_by"] == why, result.explain()
    assert result.record["timed_out"] is (why == "timeout")
    assert result.status == result.record["exit_code"] != 0
    if status is not None:
        assert result.status == status, result.explain()


def test_stopped_by_timeout():
    word = new_word()
    limit = pause(1)
    result = sh(f"echo begun; sleep {word}", timeout=f"{limit}s")
    check_stopped(result, "timeout", 124)
    assert result.record["stdout"] == "begun\n"
    assert limit * 1000 <= result.record["execution_time_ms"] < (limit + paddock.seconds(2)) * 1000
    check_gone(word)


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_stopped_by_oom():
    # tail(1) keeps all of a line.
    check_stopped(paddock.run_record(["/usr/bin/tail", "/dev/zero"], memory="32M"), "oom", 137)


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_memory_that_suffices_is_not_stopped():
    record = sh("head -c 10M /dev/zero | tail -c 20M | wc -c", memory="64M").record
    assert (record["stopped_by"], record["stdout"]) == (None, str(10 << 20) + "\n")


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_stopped_by_pids():
    check_stopped(sh("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; wait", pids=8),
                  "pids")


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_processes_that_fit_are_not_stopped():
    assert sh("for i in 1 2 3 4 5; do sleep 0.1 & done; wait", pids=8).record["stopped_by"] is None


@pytest.mark.parametrize("where", ["/workspace", "/tmp", "/dev/shm"])
def test_stopped_by_disk_space(where):
    result = sh(f"cd {where}; head -c 20M /dev/zero >f", disk="4M")
    check_stopped(result, "disk", 1)
    assert "No space left" in result.record["stderr"]


def test_stopped_by_file_count():
    line = "i=0; while [ $i -lt 500 ]; do i=$((i+1)); : >$i || exit 1; done"
    check_stopped(sh(line, files=100), "disk")


def test_space_that_suffices_is_not_stopped():
    assert sh("head -c 3M /dev/zero >f", disk="4M").record["stopped_by"] is None


def test_stopped_by_file_size():
    check_stopped(sh("head -c 2M /dev/zero >f", file_size="1M"), "disk", 128 + 25)
    direct = paddock.run_record(["/bin/dd", "if=/dev/zero", "of=f", "bs=1M", "count=2"],
                                file_size="1M")
    check_stopped(direct, "disk", 128 + 25)
    assert direct.record["signal"] == 25
    assert sh("head -c 1M /dev/zero >f; wc -c <f",
              file_size="1M").record["stdout"] == f"{1 << 20}\n"


def test_stopped_by_output():
    start = time.monotonic()
    result = paddock.run_record(["/usr/bin/yes"], output="100K")
    check_stopped(result, "output", 137)
    assert time.monotonic() - start < paddock.seconds(5)
    assert len(result.record["stdout"]) >= 100 << 10


def test_output_of_both_streams_counts():
    check_stopped(sh("head -c 60K /dev/zero; head -c 60K /dev/zero >&2; sleep 60", output="100K"),
                  "output")


def test_output_limit_without_json_cuts_the_flood():
    result = raw(["/usr/bin/yes"], output="100K")
    assert result.returncode == 137
    assert 100 << 10 <= len(result.stdout) <= 1 << 20
    assert result.stderr.count(b"\n") == 1 and b"--output" in result.stderr


def test_output_that_fits_exactly_is_not_stopped():
    result = raw(["/usr/bin/head", "-c", 100 << 10, "/dev/zero"], output="100K")
    assert (result.returncode, len(result.stdout)) == (0, 100 << 10)


def foreign_program(path):
    """An x86-64 program that makes an i386 system call (getpid), and then exits with 0."""
    code = bytes.fromhex("b814000000cd80" "b83c000000" "31ff" "0f05")
    base, start = 0x400000, 64 + 56
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, base + start, 64, 0,
                         0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, start + len(code), start + len(code),
                          0x1000)
    path.write_bytes(header + segment + code)
    path.chmod(0o755)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="speaks of x86-64 and i386")
def test_stopped_by_syscall(tmp_path):
    program = tmp_path / "foreign"
    foreign_program(program)
    tmp_path.chmod(0o755)
    alone = subprocess.run([program], check=False).returncode
    if alone == -11:
        pytest.skip("this kernel has no i386 system calls")
    assert alone == 0, "the control: outside it works"
    result = paddock.run_record(["/opt/p/foreign"], binds=[f"{tmp_path}:/opt/p"])
    check_stopped(result, "syscall", 128 + 31)
    assert result.record["signal"] == 31


@pytest.mark.parametrize("line,options,word", [
    ("head -c 20M /dev/zero >/tmp/f", {"disk": "4M"}, "--disk"),
    ("exec tail /dev/zero", {"memory": "32M"}, "--memory of 32 MiB"),
    ("sleep 9", {"timeout": "300ms"}, "0.300 s"),
])
def test_without_json_one_line_names_the_limit(line, options, word):
    if os.geteuid() != 0 and "memory" in options:
        pytest.skip(ROOT_ONLY)
    result = paddock.run(["/bin/sh", "-c", line], **options)
    told = [text for text in result.err.splitlines() if text.startswith("paddock: ")]
    assert result.status != 0
    assert len(told) == 1 and word in told[0], result.explain()


def test_failure_without_a_limit_is_not_explained():
    assert paddock.run(["/bin/false"]).err == ""


def test_cpu_share_is_kept():
    if os.geteuid() != 0:
        pytest.skip(ROOT_ONLY)
    code = "import time; t = time.time()\nwhile time.time() < t + 1: pass"
    record = paddock.run_record(["/usr/bin/python3", "-c", code], cpu="0.2").record
    assert record["cpu_time_ms"] < 0.45 * record["execution_time_ms"], record
