"""python_exec.py [--quick]: `execute("true")` of the Python package, in a session that lives, beside
posix_spawn of `/bin/sh -c true` in the same program, taken in turns. Run by tests/bench/run, which
installs the package.

PADDOCK_URL and PADDOCK_API_KEY name the server of the remote mode.
"""

import json
import os
import sys
import time

from paddock import SandboxClient

ROUNDS = 40 if "--quick" in sys.argv else 400
PAUSE = 0.003


def spawn():
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "true"], os.environ)
    os.waitpid(pid, 0)


def percentile(times, p):
    return sorted(times)[min(len(times) - 1, len(times) * p // 100)]


def main():
    clients = {mode: SandboxClient(mode=mode) for mode in ("local", "remote")}
    calls = {"posix_spawn of sh -c true": spawn}
    for mode, client in clients.items():
        client.get_or_create_session("bench", mode)
        calls[f'{mode}: execute("true")'] = lambda client=client: client.execute("true")
        calls[f'{mode}: execute(["/bin/true"])'] = lambda client=client: client.execute(["/bin/true"])
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            time.sleep(PAUSE)
            began = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - began) * 1000)
    for client in clients.values():
        client.close()
    floor = percentile(times["posix_spawn of sh -c true"], 50)
    print(f"\nPython, {ROUNDS} rounds, ms\n\n| | p50 | p95 | p99 | p50 / posix_spawn |\n|---|---|---|---|---|")
    for name, list_ in times.items():
        p50, p95, p99 = (percentile(list_, p) for p in (50, 95, 99))
        print(f"| {name} | {p50:.2f} | {p95:.2f} | {p99:.2f} | {p50 / floor:.2f} |")
    if "BENCH_OUT" in os.environ:
        with open(os.environ["BENCH_OUT"], "w", encoding="utf-8") as out:
            json.dump(times, out)


main()
