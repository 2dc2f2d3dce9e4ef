#!/usr/bin/python3
"""link.py [--quick]: what a sandbox elsewhere costs that is reached by a link, on this machine: a second Paddock rents
sandboxes out (tests/paddock_testing/rented.py), so that between a request and its command are the stand-in, the carrier,
TLS, the other server's port and the box's own end.

Prints, and writes build/bench-link.json: exec of `/bin/true` beside the same in a jail of the same server and beside
posix_spawn, in turns; bytes per second of one file that is read over links of 0, 20 and 100 ms there and back, by a way
that makes every byte late; what of this machine's memory each idle sandbox takes here and in the box. Needs root and
`make build`.
"""

import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))
os.environ.setdefault("PADDOCK", str(TOP / "build/paddock"))

from paddock_testing import host  # noqa: E402 pylint: disable=wrong-import-position
from paddock_testing.cutter import Cutter  # noqa: E402 pylint: disable=wrong-import-position
from paddock_testing.rented import Landlord  # noqa: E402 pylint: disable=wrong-import-position
from paddock_testing.server import Server  # noqa: E402 pylint: disable=wrong-import-position

QUICK = "--quick" in sys.argv
ROUNDS = 100 if QUICK else 400
BYTES = {0: 256, 20: 64, 100: 32}  # MiB
IDLE = 4 if QUICK else 10
OUT = TOP / "build/bench-link.json"
NEAR = ("paddock-standin", "paddock-guard", "paddock-carrier", "paddock-far")
SETTINGS = {"requests_per_s": 0, "creates_per_s": 0, "pool_min": 0, "pool_max": 0}


def make(api, provider):
    answer = api.post("/v1/sandboxes", json={"provider": provider})
    assert answer.status == 201, answer
    return f"/v1/sandboxes/{answer.json()['id']}"


def spawn():
    os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)


def timed(call):
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def latencies(api, rented, jail):
    """Milliseconds by turns."""
    def run(url):
        answer = api.post(f"{url}/exec", json={"argv": ["/bin/true"]})
        assert answer.status == 200 and answer.json()["exit_code"] == 0, answer

    calls = {"link": lambda: run(rented), "jail": lambda: run(jail), "spawn": spawn}
    times = {name: [] for name in calls}
    for number in range(ROUNDS + 10):
        for name, call in calls.items():
            time.sleep(0.003)
            took = timed(call)
            if number >= 10:
                times[name].append(took)
    return times


def throughput(api, url, mebibytes):
    """MB/s of a file of zeros that is read, the best of three."""
    size, best = mebibytes << 20, 0
    made = api.post(f"{url}/exec", json={"argv": ["truncate", "-s", str(size), "/workspace/zeros"]})
    assert made.status == 200 and made.json()["exit_code"] == 0, made
    for _ in range(1 if QUICK else 3):
        began, got = time.perf_counter(), 0
        answer = api.stream("GET", f"{url}/files?path=/workspace/zeros")
        while piece := answer.read(1 << 20):
            got += len(piece)
        answer.close()
        assert got == size, (got, size)
        best = max(best, size / (time.perf_counter() - began) / 1e6)
    return best


def private(pid):
    """Bytes of a process that are nobody else's."""
    return sum(int(kb) << 10 for kb in re.findall(r"(?m)^Private_\w+: +(\d+) kB", host.read_proc(pid, "smaps_rollup")))


def processes(server, names, below):
    """Those of these names: of a server's by its directory, or below other processes."""
    pids = [p for k in below for p in host.descendants(k)] if below else host.pids()
    return [p for p in pids if host.read_proc(p, "comm").strip() in names
            and (below or any(server.directory in word for word in host.command_line(p)))]


def idle_memory(server, landlord, api):
    """Of each idle sandbox, in bytes: here, by process, and in the box: init and the far end of its link."""
    made = [make(api, "e2b") for _ in range(IDLE)]
    for url in made:
        assert api.post(f"{url}/exec", json={"argv": ["/bin/true"]}).status == 200
    time.sleep(1)
    found = {name: [private(p) for p in processes(server, (name,), None)] for name in NEAR}
    inits = [host.parent(p) for p in processes(landlord.server, ("paddock-link",), landlord.server.keepers())]
    found["box"] = [private(p) + sum(private(c) for c in host.descendants(p) if host.read_proc(c, "comm") == "paddock-link\n")
                    for p in inits]
    for url in made:
        assert api.delete(url).status == 204
    return {name: statistics.median(values) for name, values in found.items() if values}


def measure():
    with Landlord() as landlord:
        way = Cutter(landlord.port)
        results = {"times": {}, "bytes_per_s": {}, "delays_ms": list(BYTES)}
        with Server({"providers": "jail,e2b", **SETTINGS, **landlord.settings()}) as server:
            api = server.client()
            rented, jail = make(api, "e2b"), make(api, "jail")
            results["times"] = latencies(api, rented, jail)
            results["bytes_per_s"]["0"] = throughput(api, rented, BYTES[0]) * 1e6
            results["idle"] = idle_memory(server, landlord, api)
        late = f"https://127.0.0.1:{way.address[1]}"
        with Server({"providers": "jail,e2b", **SETTINGS, **landlord.settings(late)}) as server:
            api = server.client()
            rented = make(api, "e2b")
            for delay in list(BYTES)[1:]:
                way.delay = delay / 2000
                results["bytes_per_s"][str(delay)] = throughput(api, rented, BYTES[delay]) * 1e6
            way.delay = 0
        way.close()
    return results


def main():
    if os.geteuid() != 0:
        print("link: left out: needs root")
        return
    results = measure()
    OUT.write_text(json.dumps(results))
    print(f"{ROUNDS} rounds of exec of /bin/true, in ms:")
    base = statistics.median(results["times"]["jail"])
    for name, values in results["times"].items():
        cuts = statistics.quantiles(values, n=100)
        print(f"  {name:6} p50 {cuts[49]:7.2f}  p95 {cuts[94]:7.2f}  p99 {cuts[98]:7.2f}  {cuts[49] / base:.2f} of the jail's")
    for delay, rate in results["bytes_per_s"].items():
        print(f"one file over {delay:>3} ms: {rate / 1e6:7.1f} MB/s")
    print("private memory of an idle sandbox: " + ", ".join(f"{n} {v / 1024:.0f} KB" for n, v in results["idle"].items()))


if __name__ == "__main__":
    main()
