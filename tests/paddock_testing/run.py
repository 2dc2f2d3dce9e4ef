"""Starting Paddock and reading what it answers.

Every call has a time limit: a hung sandbox is a failed test, never a hung test run. Times are for
a 2-core machine and are multiplied by PADDOCK_TEST_SLOW (20 in the emulated virtual machine). Bounds are
multiplied by PADDOCK_TEST_PATIENCE, too, which tests/run sets: parts run beside each other there.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PADDOCK = os.environ.get("PADDOCK", str(TOP / "build" / "paddock"))
PADDOCK_WEAK = os.environ.get("PADDOCK_WEAK", str(TOP / "build-weak" / "paddock"))
SLOW = float(os.environ.get("PADDOCK_TEST_SLOW", "1"))
NIGHTLY = os.environ.get("PADDOCK_NIGHTLY", "") not in ("", "0")
PATIENCE = float(os.environ.get("PADDOCK_TEST_PATIENCE", "1"))

# Where every test jail finds the probe and its fixtures, and a writable directory of the host.
ATTACK_DIR = "/opt/attack"
RW_DIR = "/opt/rw"


def seconds(s):
    """A bound that was chosen for an idle 2-core machine, for the machine at hand and what it does
    beside."""
    return s * SLOW * PATIENCE


def span(s):
    """A time that is always let pass, for the machine at hand."""
    return s * SLOW


def scaled_down(n, least=1):
    """A count that is lower where everything is slow."""
    return max(least, int(n / SLOW))


def rounds(by_day, by_night, least=1):
    """How often something is repeated that is the same each time; `make test-nightly` has the night's."""
    return scaled_down(by_night if NIGHTLY else by_day, least)


@dataclass
class Result:
    """How one call of the program ended. `record` is the parsed --json output, if asked for."""

    argv: list
    status: int
    out: str
    err: str
    took: float
    record: dict = field(default_factory=dict)

    def explain(self):
        return (
            f"command: {' '.join(self.argv)}\nexit status {self.status} after {self.took:.2f} s\n"
            f"stdout: {self.out[-2000:]}\nstderr: {self.err[-2000:]}"
        )


def clean_environment(extra=None):
    """The caller's environment without what would steer Paddock, plus `extra`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PADDOCK")}
    for name in ("PADDOCK_STATE_DIR", "PADDOCK_RUN_DIR"):
        if name in os.environ:
            env[name] = os.environ[name]
    env.update(extra or {})
    return env


def jail_argv(command, *, binary=None, binds=(), json_record=False, env_in=None, **options):
    """The command line of `paddock run`. Options are named as on the command line."""
    argv = [binary or PADDOCK, "run"]
    for name, value in options.items():
        if value is not None:
            argv += ["--" + name.replace("_", "-"), str(value)]
    for bind in binds:
        argv += ["--bind", bind]
    for name, value in (env_in or {}).items():
        argv += ["--env", f"{name}={value}"]
    if json_record:
        argv.append("--json")
    return argv + ["--", *map(str, command)]


def run(command, *, limit=20, env=None, stdin=subprocess.DEVNULL, uid=None, pass_fds=(), cwd=None,
        json_record=False, **options):
    """Runs a command in a jail and waits for it. `limit` is in seconds on a 2-core machine."""
    argv = jail_argv(command, json_record=json_record, **options)
    who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    start = time.monotonic()
    process = subprocess.Popen(
        argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=clean_environment(env), pass_fds=pass_fds, cwd=cwd, **who)
    try:
        out, err = process.communicate(timeout=seconds(limit))
    except subprocess.TimeoutExpired:
        out, err = give_up(process)
        raise AssertionError(
            f"not finished after {seconds(limit):.0f} s: {' '.join(argv)}\n"
            f"stdout: {out[-2000:]!r}\nstderr: {err[-2000:]!r}") from None
    result = Result(argv, process.returncode, out.decode(errors="replace"),
                    err.decode(errors="replace"), time.monotonic() - start)
    if json_record and result.out.strip():
        try:
            result.record = json.loads(result.out)
        except ValueError as error:
            raise AssertionError(f"--json gave no JSON ({error})\n{result.explain()}") from None
    return result


def give_up(process):
    """Kills a program that does not end, and gives what it has said. Others may have its output, too,
    and hang as well: they are not waited for."""
    process.kill()
    try:
        return process.communicate(timeout=seconds(5))
    except subprocess.TimeoutExpired as unfinished:
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
        process.wait(timeout=seconds(5))
        return unfinished.output or b"", unfinished.stderr or b""


def run_ok(command, **kwargs):
    """As `run`, and the command must succeed."""
    result = run(command, **kwargs)
    assert result.status == 0, result.explain()
    return result


def run_record(command, **kwargs):
    """As `run` with --json; there must be a record."""
    result = run(command, json_record=True, **kwargs)
    assert result.record, "no record\n" + result.explain()
    return result


@contextlib.contextmanager
def background(command, *, env=None, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
               uid=None, **options):
    """A jail that runs while the block does; it is ended by ending the program that asked for it."""
    argv = jail_argv(command, **options)
    who = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    process = subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE,
                               env=clean_environment(env), **who)
    try:
        yield process
    finally:
        end(process)


def end(process):
    """SIGTERM, and SIGKILL when that does not help: it is passed on to a command that may ignore
    it."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds(1.5))
    if process.poll() is None:
        process.kill()
    process.wait(timeout=seconds(10))
    for stream in (process.stdout, process.stderr, process.stdin):
        if stream:
            stream.close()


def wait_for(condition, limit, what):
    """Polls until `condition()` is true and returns what it gave; fails after `limit` seconds."""
    deadline = time.monotonic() + seconds(limit)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds(limit):.0f} s: {what}"
        time.sleep(0.01)


def settled(look, limit=30, still=1):
    """What `look` gives when it has given the same for a second, or as long as `still` says."""
    last, since = look(), time.monotonic()
    deadline = since + seconds(limit)
    while time.monotonic() - since < span(still):
        assert time.monotonic() < deadline, f"it changes all the time: {last}"
        time.sleep(0.05)
        now = look()
        if now != last:
            last, since = now, time.monotonic()
    return last


class Keeper:
    """A long-lived keeper of its own; `env` makes `run` use it."""

    def __init__(self, binary=None, uid=None, env=None, options=()):
        self.directory = tempfile.mkdtemp(prefix="paddock-keeper-")
        os.chmod(self.directory, 0o755)
        self.socket = os.path.join(self.directory, "keeper.sock")
        who = {}
        if uid is not None:
            os.chown(self.directory, uid, uid)
            who = {"user": uid, "group": uid, "extra_groups": []}
        self.log = open(os.path.join(self.directory, "log"), "w+b")
        self.process = subprocess.Popen(
            [binary or PADDOCK, "keeper", "--socket", self.socket, *options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=clean_environment(env), **who)
        self.env = {**(env or {}), "PADDOCK_KEEPER": self.socket}

    @property
    def pid(self):
        return self.process.pid

    def wait_ready(self):
        def answers():
            assert self.process.poll() is None, f"the keeper ended: {self.read_log()}"
            for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
                with socket.socket(socket.AF_UNIX, kind) as s, contextlib.suppress(OSError):
                    s.connect(self.socket)
                    return True
            return False

        wait_for(answers, 10, "the keeper listens")
        return self

    def read_log(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def kill(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        self.process.wait(timeout=seconds(10))

    def close(self):
        end(self.process)
        self.log.close()
        with contextlib.suppress(OSError):
            os.unlink(self.socket)
        for name in os.listdir(self.directory):
            os.unlink(os.path.join(self.directory, name))
        os.rmdir(self.directory)

    def __enter__(self):
        try:
            return self.wait_ready()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_):
        self.close()
