"""egress.py [--quick]: connections through the gate, beside the same over the sandbox's own loopback.

Run by tests/bench/run --only egress, as root: it makes two network namespaces with a cable between them
(tests/paddock_testing/internet.py), a sandbox in one and the far end in the other. Both ends are the same program, by
turns in one sandbox, so the last column is what the gate and the cable cost. Then sandboxes are made by a server, with
and without a way out, none of them in advance."""

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
PEER = ROOT / "build" / "tests" / "bench" / "paddock-egress-peer"
FAR = "203.0.113.8"

LINE = f"""/peer/{PEER.name} serve 9100 >/tmp/up & until grep -q up /tmp/up; do sleep 0.05; done
for round in $(seq {ROUNDS}); do for host in 127.0.0.1 {FAR}; do
  echo connect $host $(/peer/{PEER.name} connect $host 9100 {CONNECTS})
  for way in up down; do echo $way $host $(/peer/{PEER.name} $way $host 9100 {MIB}); done
done; done"""


def show(name, unit, loopback, gate, less):
    print(f"{name:24}{loopback:12.1f}{gate:12.1f} {unit:8}{gate / loopback:8.2f}   {less}")


def connections(internet):
    far = subprocess.Popen(ns(internet.far.pid, str(PEER), "serve", "9100"), stdout=subprocess.PIPE, text=True)
    try:
        far.stdout.readline()
        done = internet.run(f"--allow {FAR}:9100", LINE, "--bind", f"{PEER.parent}:/peer", timeout=600)
        if done.returncode:
            sys.exit(f"egress.py: {done.stdout[-300:]}{done.stderr[-300:]}")
    finally:
        far.kill()
        far.wait()
    found = {}
    for line in done.stdout.splitlines():
        what, host, number = line.split()
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


def main():
    why = can_make()
    if why:
        print(f"egress: left out: {why}")
        return
    internet = Internet()
    try:
        connections(internet)
        creations(internet)
    finally:
        internet.close()


main()
