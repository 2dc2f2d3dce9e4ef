"""egress.py [--quick]: connections through the gate, beside the same over the sandbox's own loopback.

Run by tests/bench/run --only egress, as root: it makes two network namespaces with a cable between them
(tests/paddock_testing/internet.py), a sandbox in one and the far end in the other. Both ends are the same program, by
turns in one sandbox, so the column of ratios is what the gate and the cable cost. Then sandboxes are made by a server, with
and without a way out, none of them in advance. Last, a thousand with a way out use it, and one beside them makes
connections, by turns through the gate and over its own loopback: while they stand still, and while they run.

On a machine that others use times say little. So everything is by turns, differences are those of neighbours in time,
and where it can be told the processor time that was used is shown beside what a clock said."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from paddock_testing import host  # noqa: E402  pylint: disable=wrong-import-position
from paddock_testing.internet import Internet, ServerInside, can_make, ns  # noqa: E402  pylint: disable=wrong-import-position

QUICK = "--quick" in sys.argv
ROUNDS = 2 if QUICK else 5
CONNECTS = 100 if QUICK else 400
MIB = 512  # at most 16 times 127
CREATIONS = 50 if QUICK else 400  # of either sort
BLOCK = 25
CROWD = 50 if QUICK else 1000
PEER = ROOT / "build" / "tests" / "bench" / "paddock-egress-peer"
FAR = "203.0.113.8"

LINE = f"""/peer/{PEER.name} serve 9100 >/tmp/up & until grep -q up /tmp/up; do sleep 0.05; done
for round in $(seq {ROUNDS}); do
  for host in 127.0.0.1 {FAR}; do echo connect $host $(/peer/{PEER.name} connect $host 9100 {CONNECTS}); done
  for way in up down; do for host in 127.0.0.1 {FAR}; do echo $way $host $(/peer/{PEER.name} $way $host 9100 {MIB}); done; done
done"""


def show(name, unit, loopback, gate, less):
    print(f"{name:24}{loopback:12.1f}{gate:12.1f} {unit:8}{gate / loopback:8.2f}   {less}")


def far_end(internet):
    far = subprocess.Popen(ns(internet.far.pid, str(PEER), "serve", "9100"), stdout=subprocess.PIPE, text=True)
    far.stdout.readline()
    return far


def processor(pids):
    """Milliseconds that these processes and their children that have ended have used; those of the kernel are tens."""
    ticks = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                ticks += sum(int(n) for n in file.read().rsplit(")", 1)[1].split()[11:15])
        except OSError:
            pass
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def gate_of(pid):
    """The gate of this `paddock run`, which has it before its command's first line."""
    return next(p for p in host.descendants(pid) if host.command_line(p)[1:2] == ["gate"])


def connections(internet):
    far = far_end(internet)
    run = subprocess.Popen(ns(internet.near.pid, str(ROOT / "build" / "paddock"), "run", "--timeout", "600", "--allow", f"{FAR}:9100",
                              "--bind", f"{PEER.parent}:/peer", "--", "bash", "-c", LINE), stdout=subprocess.PIPE, text=True)
    found, used, gate = {}, {}, []
    try:
        for line in run.stdout:
            what, where, number, *_ = line.split()
            gate = gate or [gate_of(run.pid)]
            found.setdefault((what, where), []).append(float(number))
            used.setdefault((what, where), []).append(processor(gate))
        if run.wait():
            sys.exit("egress.py: the sandbox with both ends failed")
    finally:
        for p in (run, far):
            p.kill()
            p.wait()
    print(f"{'':24}{'loopback':>12}{'gate':>12} {'':8}{'times':>8}")
    for what, unit, less in (("connect", "us", "connect, a byte there and back; at most 2.5"),
                             ("up", "MiB/s", "at least 0.40"), ("down", "MiB/s", "at least 0.40")):
        show(what, unit, *(statistics.median(found[what, h]) for h in ("127.0.0.1", FAR)), less)
    for what in ("up", "down"):  # what was used since the line before, which is the same over loopback
        each = [b - a for a, b in zip(used[what, "127.0.0.1"], used[what, FAR])]
        print(f"  {what + ', processor time of the gate':44}{statistics.median(each) * 1024 / MIB:8.0f} ms a GiB")


def creations(internet):
    """By blocks, in turned order, because processor time is told in hundredths of a second."""
    times, used = {"without": [], "with": []}, {"without": [], "with": []}
    bodies = {"without": {}, "with": {"network": {"allow": ["a.example"]}}}
    with ServerInside(internet, {"creates_per_s": 0, "requests_per_s": 0}) as server:
        client = server.client()
        for block in range(-1, CREATIONS // BLOCK):
            for which in ("without", "with")[::1 if block % 2 else -1]:
                before = processor([server.process.pid, *host.descendants(server.process.pid)])
                for _ in range(BLOCK):
                    began = time.monotonic()
                    made = client.post("/v1/sandboxes", json=bodies[which])
                    if block >= 0:
                        times[which].append((time.monotonic() - began) * 1000)
                    client.delete(f"/v1/sandboxes/{made.json()['id']}")
                if block >= 0:
                    used[which].append((processor([server.process.pid, *host.descendants(server.process.pid)]) - before) / BLOCK)
    print("\nPOST /v1/sandboxes, nothing made in advance, without and with a way out:")
    for name, at in (("a tenth is quicker", 10), ("half is quicker", 50)):
        without, with_ = (statistics.quantiles(times[w], n=100)[at - 1] for w in ("without", "with"))
        print(f"  {name:28}{without:8.2f} ms {with_:8.2f} ms {with_ - without:+8.2f} ms   at most +0.30")
    without, with_ = (statistics.mean(used[w]) for w in ("without", "with"))
    print(f"  {'processor time, with its end':28}{without:8.2f} ms {with_:8.2f} ms {with_ - without:+8.2f} ms")


def memory():
    """KiB of the machine: what is available, and what the kernel has for itself, in which namespaces and sockets are."""
    with open("/proc/meminfo", encoding="ascii") as file:
        told = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return told["MemAvailable"], sum(told[n] for n in ("Slab", "Percpu", "KernelStack", "PageTables"))


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

    def all(self, what):
        for name in self.names:
            done = self.client.post(f"/v1/sandboxes/{name}/{what}")
            if done.status != 200:
                sys.exit(f"egress.py: {done}")

    def times(self, name):
        """p50 and p99 of a sandbox's connections: through the gate, and over its loopback."""
        line = f"for host in {FAR} 127.0.0.1; do /workspace/peer connect $host 9100 {CONNECTS} || exit; done"
        told = self.client.post(f"/v1/sandboxes/{name}/exec", json={"command": line, "timeout_s": 300}).json()
        if told["exit_code"] != 0:
            sys.exit(f"egress.py: {told}")
        return [float(n) for n in told["stdout"].split()]


def weigh(server, network, others):
    """Half of the crowd with a way out, and as many without, in parts by turns; those with one stay."""
    bare, weights = Crowd(server), {"without": [], "with": []}
    part = CROWD // 10
    (gate,) = server.gates()
    gate_before = resident(gate)
    for turn in range(5):
        for name in ("without", "with")[::1 if turn % 2 else -1]:
            before = memory()
            (others if name == "with" else bare).add(part, network if name == "with" else None)
            time.sleep(2)
            after = memory()
            weights[name].append(((before[0] - after[0]) / part, (after[1] - before[1]) / part))
    print(f"\nMemory of an idle sandbox in KiB, medians of five times {part}, by turns:")
    print(f"{'':36}{'without':>10}{'with':>10}{'more':>10}")
    for i, what in enumerate(("by how far MemAvailable drops", "slabs, stacks, tables of the kernel")):
        without, with_ = (statistics.median(w[i] for w in weights[n]) for n in ("without", "with"))
        print(f"  {what:34}{without:10.0f}{with_:10.0f}{with_ - without:+10.0f}   at most +16")
    print(f"  {'the gate itself':54}{(resident(gate) - gate_before) / (5 * part):+10.1f}")
    for name in bare.names:
        bare.client.delete(f"/v1/sandboxes/{name}")


def crowd(internet):
    most = str(2 * CROWD + 50)
    settings = {"creates_per_s": 0, "requests_per_s": 0, "max_sandboxes": most, "max_sandboxes_per_tenant": most,
                "egress_tenant_connections": 10 * CROWD}
    network = {"allow": [f"{FAR}:9100"]}
    far = far_end(internet)
    try:
        with ServerInside(internet, settings) as server:
            others, neighbour = Crowd(server), Crowd(server)
            weigh(server, network, others)
            others.add(CROWD - len(others.names), network)
            one = neighbour.add(1, network)
            for name in (one, *others.names):
                others.give(name)
            for name in others.names:
                others.start(name, "keep", FAR, "9100", "9999")
            neighbour.start(one, "serve", "9100")
            neighbour.times(one)
            still, beside = [], []
            (gate,) = server.gates()
            for _ in range(ROUNDS):
                others.all("pause")
                still.append(neighbour.times(one))
                others.all("resume")
                time.sleep(2)
                before, began = processor([gate]), time.monotonic()
                beside.append([*neighbour.times(one), (processor([gate]) - before) / 10 / (time.monotonic() - began)])
            text = neighbour.client.get("/metrics").text
            served = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith('paddock_egress_total{result="ok"'))
            print(f"\nA neighbour's connections, while {CROWD:,} others stand still, and make one every two seconds, by turns"
                  f" (gate: {served:.0f} so far), us:")
            print(f"{'':24}{'still':>12}{'beside':>12}")
            for i, name in enumerate(("p50", "p99", "p50 of its loopback", "p99 of its loopback")):
                a, b = (statistics.median(t[i] for t in times) for times in (still, beside))
                print(f"  {name:22}{a:12.1f}{b:12.1f}{b / a:8.2f} times" + ("   at most 2.0" if name == "p99" else ""))
            print(f"  the gate uses{statistics.median(t[4] for t in beside):6.1f} % of a processor beside them")
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
