"""egress.py [--quick]: connections through the gate, beside the same over the sandbox's own loopback.

Run by tests/bench/run --only egress, as root: it makes two network namespaces with a cable between them
(tests/paddock_testing/internet.py), a sandbox in one and the far end in the other. Both ends are the same program, by
turns in one sandbox, so the last column is what the gate and the cable cost. Then sandboxes are made by a server, with
and without a way out, none of them in advance. Last, a thousand with a way out use it all at once, and one beside them
makes connections, by turns through the gate and over its own loopback: alone, and with them."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from paddock_testing.internet import Internet, ServerInside, can_make, ns  # noqa: E402  pylint: disable=wrong-import-position

QUICK = "--quick" in sys.argv
ROUNDS = 2 if QUICK else 5
CONNECTS = 100 if QUICK else 400
MIB = 512  # at most 16 times 127
CREATIONS = 20 if QUICK else 200
CROWD = 50 if QUICK else 1000
PEER = ROOT / "build" / "tests" / "bench" / "paddock-egress-peer"
FAR = "203.0.113.8"

LINE = f"""/peer/{PEER.name} serve 9100 >/tmp/up & until grep -q up /tmp/up; do sleep 0.05; done
for round in $(seq {ROUNDS}); do for host in 127.0.0.1 {FAR}; do
  echo connect $host $(/peer/{PEER.name} connect $host 9100 {CONNECTS})
  for way in up down; do echo $way $host $(/peer/{PEER.name} $way $host 9100 {MIB}); done
done; done"""


def show(name, unit, loopback, gate, less):
    print(f"{name:24}{loopback:12.1f}{gate:12.1f} {unit:8}{gate / loopback:8.2f}   {less}")


def far_end(internet):
    far = subprocess.Popen(ns(internet.far.pid, str(PEER), "serve", "9100"), stdout=subprocess.PIPE, text=True)
    far.stdout.readline()
    return far


def connections(internet):
    far = far_end(internet)
    try:
        done = internet.run(f"--allow {FAR}:9100", LINE, "--bind", f"{PEER.parent}:/peer", timeout=600)
        if done.returncode:
            sys.exit(f"egress.py: {done.stdout[-300:]}{done.stderr[-300:]}")
    finally:
        far.kill()
        far.wait()
    found = {}
    for line in done.stdout.splitlines():
        what, host, number, *_ = line.split()
        found.setdefault((what, host), []).append(float(number))
    print(f"{'':24}{'loopback':>12}{'gate':>12} {'':8}{'times':>8}")
    for what, unit, less in (("connect", "us", "connect, a byte there and back; at most 2.5"),
                             ("up", "MiB/s", "at least 0.40"), ("down", "MiB/s", "at least 0.40")):
        show(what, unit, *(statistics.median(found[what, h]) for h in ("127.0.0.1", FAR)), less)


def creations(internet):
    times = {"without": [], "with": []}
    with ServerInside(internet, {"creates_per_s": 0, "requests_per_s": 0}) as server:
        client = server.client()
        for i in range(2 * CREATIONS + 10):
            which = ("without", "with")[i % 2]
            body = {"network": {"allow": ["a.example"]}} if i % 2 else {}
            began = time.monotonic()
            made = client.post("/v1/sandboxes", json=body)
            if i >= 10:
                times[which].append((time.monotonic() - began) * 1000)
            client.delete(f"/v1/sandboxes/{made.json()['id']}")
    print("\nPOST /v1/sandboxes, nothing made in advance, without and with a way out:")
    for name, at in (("a tenth is quicker", 10), ("half is quicker", 50)):
        without, with_ = (statistics.quantiles(times[w], n=100)[at - 1] for w in ("without", "with"))
        print(f"  {name:20}{without:8.2f} ms {with_:8.2f} ms {with_ - without:+8.2f} ms   at most +0.30")


def available():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


class Crowd:
    """Sandboxes of one server, all with the peer in them."""

    def __init__(self, server):
        self.client = server.client()
        self.server = server
        self.names = []

    def add(self, count, network):
        for _ in range(count):
            made = self.client.post("/v1/sandboxes", json={"network": network} if network else {})
            if made.status != 201:
                sys.exit(f"egress.py: {made}")
            self.names.append(made.json()["id"])
        return self.names[-1]

    def give(self, name):
        put = self.client.put(f"/v1/sandboxes/{name}/files?path=/workspace/peer&mode=755", data=PEER.read_bytes())
        if put.status not in (200, 201, 204):
            sys.exit(f"egress.py: {put}")

    def start(self, name, *words):
        begun = self.client.post(f"/v1/sandboxes/{name}/processes", json={"argv": ["/workspace/peer", *words]})
        if begun.status != 201:
            sys.exit(f"egress.py: {begun}")

    def times(self, name):
        """p50 and p99 of a sandbox's connections: through the gate, and over its loopback."""
        line = f"for host in {FAR} 127.0.0.1; do /workspace/peer connect $host 9100 {CONNECTS} || exit; done"
        told = self.client.post(f"/v1/sandboxes/{name}/exec", json={"command": line, "timeout_s": 300}).json()
        if told["exit_code"] != 0:
            sys.exit(f"egress.py: {told}")
        return [float(n) for n in told["stdout"].split()]

    def end(self):
        for name in self.names:
            self.client.delete(f"/v1/sandboxes/{name}")
        self.names.clear()
        time.sleep(3)


def crowd(internet):
    most = str(CROWD + 50)
    settings = {"creates_per_s": 0, "requests_per_s": 0, "max_sandboxes": most, "max_sandboxes_per_tenant": most,
                "egress_tenant_connections": 10 * CROWD}
    network = {"allow": [f"{FAR}:9100"]}
    far = far_end(internet)
    try:
        with ServerInside(internet, settings) as server:
            others = Crowd(server)
            weights = {}
            for name, rules in (("without", None), ("with", network)) * (1 if QUICK else 2):
                (gate,) = server.gates()
                before, gate_before = available(), resident(gate)
                others.add(CROWD, rules)
                time.sleep(3)
                weights.setdefault(name, []).append((before - available()) / CROWD)
                weights.setdefault("gate " + name, []).append((resident(gate) - gate_before) / CROWD)
                others.end()
            print(f"\nMemory of each of {CROWD:,} idle sandboxes, KiB, by how far MemAvailable drops (the gate's own RSS):")
            for name in ("without", "with"):
                print(f"  {name:8}" + "".join(f"{w:8.0f} ({g:.1f})" for w, g in zip(weights[name], weights["gate " + name])))
            print(f"  more     {statistics.mean(weights['with']) - statistics.mean(weights['without']):+8.0f}   at most +16")

            neighbour = Crowd(server)
            one = neighbour.add(1, network)
            neighbour.give(one)
            neighbour.start(one, "serve", "9100")
            neighbour.times(one)
            alone = [neighbour.times(one) for _ in range(ROUNDS)]
            others.add(CROWD, network)
            for name in others.names:
                others.give(name)
                others.start(name, "keep", FAR, "9100", "9999")
            time.sleep(5)
            beside = [neighbour.times(one) for _ in range(ROUNDS)]
            text = others.client.get("/metrics").text
            others.end()
            again = [neighbour.times(one) for _ in range(ROUNDS)]
            neighbour.end()
            served = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith('paddock_egress_total{result="ok"'))
            print(f"\nA neighbour's connections, while {CROWD:,} others make one every two seconds (gate: {served:.0f} so far), us:")
            print(f"{'':24}{'alone':>12}{'beside':>12}{'alone again':>14}")
            for i, name in enumerate(("p50", "p99", "p50 of its loopback", "p99 of its loopback")):
                a, b, c = (statistics.median(t[i] for t in times) for times in (alone, beside, again))
                print(f"  {name:22}{a:12.1f}{b:12.1f}{c:14.1f}{b / statistics.mean((a, c)):8.2f} times" +
                      ("   at most 2.0" if name == "p99" else ""))
    finally:
        far.kill()
        far.wait()


def main():
    why = can_make()
    if why:
        print(f"egress: left out: {why}")
        return
    internet = Internet()
    try:
        connections(internet)
        creations(internet)
        crowd(internet)
    finally:
        internet.close()


main()
