"""contexts.py [--quick]: code contexts over HTTP, beside the peer's own server on the same machine.

Run by tests/bench/run --only contexts, which starts our server. PADDOCK_URL and PADDOCK_API_KEY name it. The peer is
E2B's code interpreter: where E2B_CODE_REPO is a checkout (or a bare git directory) of its repository, its server is
taken from there and started with pip's jupyter-server and ipykernel (BENCH_PEER, a virtual environment with them); else
its rows are left out. Both are asked by the same client, by turns.
"""

import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

QUICK = "--quick" in sys.argv
ROUNDS = 40 if QUICK else 300
STARTS = 3 if QUICK else 10
FORKS = 5 if QUICK else 50
CALM_S = 0.05
JUPYTER = 8888  # written down in the peer's server
MEGABYTES_200 = "data = bytearray(200 << 20)\nfor at in range(0, len(data), 4096): data[at] = 1\nlen(data)"


# What belongs to a process alone, as it says itself.
# It is counted after a collection, which a copy of a zygote must survive without a copy of its memory.
PRIVATE_BYTES = ("sum(int(line.split()[1]) for line in open('/proc/self/smaps_rollup') "
                 "if line.startswith('Private')) * 1024")
COLLECT = "import gc, pandas, matplotlib.pyplot; gc.collect(); "


class Client:
    """One connection that is kept."""

    def __init__(self, url, headers=()):
        parts = urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
        self.headers = {"Content-Type": "application/json", **dict(headers)}

    def call(self, method, path, body=None):
        self.connection.request(method, path, json.dumps(body) if body is not None else None, self.headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
        return data

    def json(self, method, path, body=None):
        data = self.call(method, path, body)
        return json.loads(data) if data else None


class Ours(Client):
    def __init__(self):
        super().__init__(os.environ["PADDOCK_URL"], {"X-API-Key": os.environ["PADDOCK_API_KEY"]})

    def create(self, **options):
        return "/v1/sandboxes/" + self.json("POST", "/v1/sandboxes", options)["id"]

    def cell(self, box, code, context="python"):
        done = self.json("POST", f"{box}/contexts/{context}/execute", {"code": code})
        if done["error"]:
            raise RuntimeError(done["error"]["traceback"])
        return done


def wait_for_pool(ours):
    """Until the pool of sandboxes with libraries (contexts_warm_pool) is full, so that none is made meanwhile."""
    wanted = int(os.environ.get("PADDOCK_CONTEXTS_WARM_POOL", "0"))
    if not wanted:
        return
    end = time.monotonic() + 60
    while time.monotonic() < end:
        lines = ours.call("GET", "/metrics").decode().splitlines()
        if any(line.startswith("paddock_pool_code_ready ") and float(line.split()[1]) >= wanted for line in lines):
            return
        time.sleep(0.02)
    print("contexts: the pool of sandboxes with libraries is not full", file=sys.stderr)


class Calm:
    """As place_calm of tests/bench/place.c: a measurement waits for a moment when nobody else wants a processor."""
    starts = calm_starts = 0


def wait_for_calm():
    time.sleep(0.003)
    end = time.monotonic() + CALM_S
    Calm.starts += 1
    while True:
        with open("/proc/stat", encoding="ascii") as stat:
            running = next(int(line.split()[1]) for line in stat if line.startswith("procs_running"))
        if running <= 1:
            Calm.calm_starts += 1
            return
        if time.monotonic() > end:
            return
        time.sleep(0.001)


def elapsed(call):
    wait_for_calm()
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


class Peer:
    """The peer's server, with a jupyter server below it. None of it is isolated."""

    def __init__(self, repository, venv):
        self.folder = tempfile.mkdtemp()
        self.children = []
        server = os.path.join(self.folder, "server")
        os.makedirs(server)
        archive = subprocess.run(
            ["git", "-C", repository, "archive", "HEAD:template/server"], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "x", "-C", server], input=archive, check=True)
        home = os.path.join(self.folder, "home")
        kernels = os.path.join(self.folder, "jupyter", "kernels")
        for name in ("python", "javascript"):  # of the second only the name: its server starts both
            os.makedirs(os.path.join(kernels, name))
            with open(os.path.join(kernels, name, "kernel.json"), "w", encoding="utf-8") as out:
                json.dump({"argv": [f"{venv}/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                           "display_name": name, "language": "python"}, out)
        os.makedirs(home)
        env = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": home, "E2B_LOCAL": "1",
               "JUPYTER_PATH": os.path.join(self.folder, "jupyter")}
        self._start([f"{venv}/bin/jupyter", "server", "--IdentityProvider.token=", "--allow-root",
                     f"--ServerApp.root_dir={home}", "--ServerApp.disable_check_xsrf=True",
                     f"--port={JUPYTER}", "--ServerApp.port_retries=0"], home, env)
        self._await(JUPYTER)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._start([f"{venv}/bin/uvicorn", "main:app", "--host", "127.0.0.1", "--port", str(self.port),
                     "--workers", "1", "--no-access-log"], server, env)
        self._await(self.port)
        self.client = Client(f"http://127.0.0.1:{self.port}")

    def _start(self, command, folder, env):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.children.append(subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL,
                                                  stdout=log, stderr=log))

    def _await(self, port):
        end = time.monotonic() + 90
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self.children[-1].poll() is not None:
                    with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
                        raise RuntimeError("the peer did not start: " + log.read()[-600:]) from None
                time.sleep(0.1)

    def cell(self, code):
        return self.client.call("POST", "/execute", {"code": code})

    def close(self):
        for child in reversed(self.children):
            child.terminate()
            child.wait()
        shutil.rmtree(self.folder)


def find_peer():
    repository, venv = os.environ.get("E2B_CODE_REPO"), os.environ.get("BENCH_PEER")
    if not repository or not venv:
        print("contexts: E2B_CODE_REPO is not set: without the peer", file=sys.stderr)
        return None
    try:
        return Peer(repository, venv)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"contexts: without the peer: {error}", file=sys.stderr)
        return None


def first_cells(ours, times):
    for _ in range(STARTS):
        box = ours.create()
        times["first cell of a fresh sandbox"].append(elapsed(lambda box=box: ours.cell(box, "1 + 1")))
        ours.call("DELETE", box)


def first_frames(ours, times):
    """With a pool that has the libraries imported (contexts_warm); else what it is without."""
    for _ in range(STARTS):
        made = []
        wait_for_pool(ours)

        def frame():
            made.append(ours.create(template="code-interpreter-v1"))
            ours.cell(made[0], "import pandas\npandas.DataFrame({'a': [1, 2]})")

        try:
            times["create and first DataFrame"].append(elapsed(frame))
        except RuntimeError as error:
            print(f"contexts: no DataFrame: {str(error)[-200:]}", file=sys.stderr)
            return
        finally:
            for box in made:
                ours.call("DELETE", box)


def copy_bytes(ours):
    """What an idle context with pandas has for itself when it was copied from a zygote; None without pandas."""
    wait_for_pool(ours)
    box = ours.create(template="code-interpreter-v1")
    try:
        return int(ours.cell(box, COLLECT + PRIVATE_BYTES)["results"][0]["text"])
    except RuntimeError:
        return None
    finally:
        ours.call("DELETE", box)


def fork(ours, box, big, times, name):
    """A fork that is measured; returns its id."""
    made = []
    times[name].append(elapsed(lambda: made.append(ours.json("POST", f"{box}/contexts/{big}/fork", {}))))
    return made[0]["id"]


def forks(ours, box, times):
    """Of 200 MB in pages of 4 KiB: right behind the cell that wrote them, and when the driver has had the time to put them
    into huge ones (a second, where the kernel can)."""
    try:
        big = ours.json("POST", f"{box}/contexts", {})["id"]
        for _ in range(STARTS):
            ours.cell(box, "data = None", big)
            ours.cell(box, MEGABYTES_200, big)
            copy = fork(ours, box, big, times, "fork of 200 MB right behind the cell that wrote them")
            ours.call("DELETE", f"{box}/contexts/{copy}")
            time.sleep(0.05)

        ours.cell(box, "data = None", big)
        ours.cell(box, MEGABYTES_200, big)
        time.sleep(1)
        for _ in range(FORKS):
            copy = fork(ours, box, big, times, "fork of a context with 200 MB")
            times["a cell in the fork, at once"].append(elapsed(lambda c=copy: ours.cell(box, "len(data)", c)))
            ours.call("DELETE", f"{box}/contexts/{copy}")
            time.sleep(0.05)  # its end is no part of the next one's beginning
    except RuntimeError as error:
        print(f"contexts: no fork: {error}", file=sys.stderr)


def main():
    ours, peer = Ours(), find_peer()
    names = ["a cell `1+1`", "the same at the peer's server", "first cell of a fresh sandbox",
             "create and first DataFrame", "fork of a context with 200 MB",
             "fork of 200 MB right behind the cell that wrote them", "a cell in the fork, at once"]
    times = {name: [] for name in names}
    try:
        box = ours.create()
        for _ in range(5):
            ours.cell(box, "1+1")
            if peer:
                peer.cell("1+1")
        for _ in range(ROUNDS):
            times["a cell `1+1`"].append(elapsed(lambda: ours.cell(box, "1+1")))
            if peer:
                times["the same at the peer's server"].append(elapsed(lambda: peer.cell("1+1")))
        bare = ours.json("POST", f"{box}/contexts", {})["id"]
        memory = int(ours.cell(box, PRIVATE_BYTES, bare)["results"][0]["text"])
        forks(ours, box, times)
        ours.call("DELETE", box)
        first_cells(ours, times)
        first_frames(ours, times)
        copied = copy_bytes(ours)
    finally:
        if peer:
            peer.close()
    if Calm.calm_starts < Calm.starts / 2:
        print(f"contexts: the machine is busy: {Calm.starts - Calm.calm_starts} of {Calm.starts} measurements "
              "began while others wanted a processor")
    print(f"\nCode contexts, {ROUNDS} rounds, ms\n\n| | p50 | p95 | p99 |\n|---|---|---|---|")
    for name, values in times.items():
        if values:
            ordered = sorted(values)
            p50, p95, p99 = (ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 95, 99))
            print(f"| {name} | {p50:.2f} | {p95:.2f} | {p99:.2f} |")
    theirs = times["the same at the peer's server"]
    if theirs:
        ratio = statistics.median(theirs) / statistics.median(times["a cell `1+1`"])
        print(f"\na cell: 1/{ratio:.0f} of the peer's, asked by turns")
    print(f"\nmemory of an idle bare context: {memory / (1 << 20):.1f} MB")
    if copied:
        print(f"memory of an idle context with pandas, beside its zygote's: {copied / (1 << 20):.1f} MB")
    if "BENCH_OUT" in os.environ:
        with open(os.environ["BENCH_OUT"], "w", encoding="utf-8") as out:
            json.dump({"times": {n: v for n, v in times.items() if v}, "idle_bytes": memory, "copy_bytes": copied,
                       "starts": Calm.starts, "calm_starts": Calm.calm_starts}, out)


main()
