"""One part of the suite, and the commands that it runs.

Parts run beside each other in threads. A part keeps its lines until it is done, so that those of two
parts never mix. Every process that a part starts has MARK in its environment, with a value of this
run: that finds servers, too, which leave their process group and outlive whoever started them.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOGS = os.path.join(ROOT, "build-test")
PYTHON = "/usr/bin/python3"  # Debian's: it is the one that has Debian's pytest
# What Python compiles is kept for the next process, but not beside the sources.
PYCACHE = os.path.join(LOGS, "pycache")
SKIP = 77  # the exit status of a script that could not run its tests
NIGHTLY = os.environ.get("PADDOCK_NIGHTLY", "") not in ("", "0")
STRICT = NIGHTLY or os.environ.get("PADDOCK_STRICT", "") not in ("", "0")  # nothing is tried again

# One test that hangs fails by itself, with its stack, and the others of its part run on. The longest test
# takes about a minute on idle processors.
TEST_LIMIT_S = 1800 if NIGHTLY else 240

MARK = "TESTS_RUN"
GRACE_S = 10  # for what is interrupted to tidy up, before it is killed
KILL_S = 20  # for what is killed to be gone, on a busy machine

# A failure's text: so many lines are shown, of so many characters; the logs have all of it.
TEXT_LINES, TEXT_COLUMNS = 40, 300
TEXT_HEAD = 8  # of these are its first ones
REASON_LINES, REASON_COLUMNS = 4, 200  # in the list at the end
PASSED_LINE = re.compile(r"\s*(ok|skip|PASSED|SKIPPED)\b")  # tells nothing of a failure


# build NAME [TARGET...]: see Workshop.build.
OBJECTS = "objects"
BUILD = f"""set -e
dir=$(scripts/configure "$1")
shift
if [[ $* == {OBJECTS} ]]; then
    ninja -C "$dir" build.ninja  # it may be older than a meson.build
    ninja -C "$dir" -t targets rule c_COMPILER >"$dir/{OBJECTS}"
    mapfile -t targets <"$dir/{OBJECTS}"
    set -- "${{targets[@]}}"
fi
exec ninja -C "$dir" "$@"
"""


class Stopped(Exception):
    """The whole run was interrupted."""


class Part:
    """The results of one part. `lines` are shown when it is done: what failed, each with its text.
    Every result is in `results`, which becomes build-test/PART.results."""

    def __init__(self, name):
        self.name = name
        self.passed = 0
        self.failed = []  # (test, text)
        self.skipped = []  # (test, reason)
        self.unsteady = []  # (test, text): failed, and passed when it was tried again
        self.again = []  # see again.py
        self.lines = []
        self.results = []
        self.seconds = 0.0
        self.cpu = 0.0

    def ok(self, test):
        self.passed += 1
        self.results.append(f"ok    {test}")

    def fail(self, test, why=""):
        text = [line.rstrip() for line in why.strip("\n").splitlines()]
        self.failed.append((test, text))
        self.results += [f"FAIL  {test}", *(f"      {line}" for line in text)]
        self.lines += [f"  FAIL  {test}", *(f"        {line}" for line in shorten(text))]

    def skip(self, test, why):
        self.skipped.append((test, why))
        self.results.append(f"skip  {test}: {why}")

    def counts(self):
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"

    def write_results(self):
        os.makedirs(LOGS, exist_ok=True)
        with open(os.path.join(LOGS, f"{self.name}.results"), "w", encoding="utf-8",
                  errors="replace") as out:
            out.writelines(f"{line}\n" for line in self.results)

    def check(self, test, result):
        """One test that is one command: passes when its status is 0."""
        if result.status == 0:
            self.ok(test)
        else:
            self.fail(test, result.tail())
        return result.status == 0


class Result:
    def __init__(self, status, output):
        self.status = status
        self.output = output

    def tail(self):
        """The end of the output, without what passed."""
        kept = [l for l in self.output.rstrip().splitlines() if not PASSED_LINE.match(l)]
        cut = len(kept) - (TEXT_LINES - 2)
        if cut > 0:
            kept = [f"[... {cut} lines more in build-test/]", *kept[cut:]]
        return "\n".join([*kept, f"exit status {self.status}"])


def shorten(text):
    """The first and the last lines of a failure's text: the place, and what was wrong."""
    shadow = next((n for n, line in enumerate(text) if line.startswith("Shadow bytes")), None)
    text = text[:shadow]  # the end of a sanitizer's report tells nothing
    cut = len(text) - (TEXT_LINES - 1)
    if cut > 1:
        text = [*text[:TEXT_HEAD], f"[... {cut} lines more in build-test/]", *text[TEXT_HEAD + cut:]]
    return [line[:TEXT_COLUMNS] for line in text]


def reason(text):
    """The few lines of a failure's text that say why: pytest's errors, a sanitizer's, or the last."""
    text = [line for line in text if line.strip()]
    places = [line for line in text if re.match(r"\S+\.py:\d+: ", line)]
    errors = [line[1:] for line in text if re.match(r"E\s", line)]
    reports = [line for line in text if re.search(r"Sanitizer: |: runtime error: ", line)]
    if errors or reports:
        text = [*places[-1:], *(errors or reports)[:REASON_LINES - 1]]
    return [line.strip()[:REASON_COLUMNS] for line in text[-REASON_LINES:]]


class Workshop:
    """Runs commands for all parts, and can end every one of them."""

    def __init__(self, grace=GRACE_S):
        self.grace = grace
        self.mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.children = set()
        self.building = {}  # name: the lock of that directory
        self.built = {}  # (name, targets): the result, when there is one

    def run(self, part, log, command, limit, env=None):
        """Runs a command to its end or to the limit in seconds; output goes to build-test/LOG.log."""
        path = os.path.join(LOGS, log + ".log")
        os.makedirs(LOGS, exist_ok=True)
        late = ""
        with open(path, "wb") as out:
            child = self._start(part, command, out, env)
            deadline = time.monotonic() + limit
            while (ended := _wait(child.pid, 0.05)) is None:
                if self.stopping.is_set():
                    raise Stopped
                if time.monotonic() > deadline:
                    late = f"\nstopped: not done after {limit} s"
                    _interrupt({child.pid})
                    ended = _wait(child.pid, self.grace)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)
                    ended = ended or _wait(child.pid, 60)
                    self._kill_all(part)
                    break
            with self.lock:
                self.children.discard(child.pid)
            status, usage = ended or (1, None)
            child.returncode = status
            if usage:
                part.cpu += usage.ru_utime + usage.ru_stime
        with open(path, encoding="utf-8", errors="replace") as out:
            return Result(status or (1 if late else 0), out.read() + late)

    def _start(self, part, command, out, env):
        with self.lock:
            if self.stopping.is_set():
                raise Stopped
            child = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, "PYTHONPYCACHEPREFIX": PYCACHE,
                                             MARK: f"{self.mark}/{part.name}", **(env or {})})
            self.children.add(child.pid)
        return child

    def build(self, part, name, *targets):
        """Configures and compiles targets of a build directory, once in a run; True when that worked. The
        target OBJECTS is all that is compiled, and nothing is linked. Two parts never work in one directory."""
        with self.lock:
            lock = self.building.setdefault(name, threading.Lock())
            results = self.built.setdefault((name, *targets), [])
        with lock:
            if not results:
                results.append(self.run(part, f"build-{name}",
                                        ["bash", "-c", BUILD, "build", name, *targets], 1800))
                for program in ("paddockd", "paddock-remote"):
                    beside = os.path.join(ROOT, "build", program)  # where paddock looks for it
                    if name == "server" and not results[0].status and not os.path.islink(beside):
                        os.symlink("../build-server/" + program, beside)
        if results[0].status:
            part.fail(f"build {name}", results[0].tail())
        return results[0].status == 0

    def stop(self):
        """Ends all that was started, gently first: a test that is interrupted removes its server."""
        with self.lock:
            self.stopping.set()
            _interrupt(self.children)
        deadline = time.monotonic() + self.grace
        while time.monotonic() < deadline and self.alive():
            time.sleep(0.1)
        self._kill_all()

    def _kill_all(self, part=None):
        for pid in self.alive(part):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + KILL_S
        while time.monotonic() < deadline and self.alive(part):
            time.sleep(0.02)

    def alive(self, part=None):
        """Every living process of this run, or of one part of it."""
        word = f"{MARK}={self.mark}/{part.name if part else ''}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as f:
                words = f.read().split(b"\0")
                if word in words if part else any(w.startswith(word) for w in words):
                    found.append(int(name))
        return found


def _interrupt(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGINT)


def _wait(pid, limit):
    """(status, usage) of a child that ended, or None when the time is over."""
    deadline = time.monotonic() + limit
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage
        if time.monotonic() >= deadline:
            return None
        time.sleep(min(0.05, limit))
