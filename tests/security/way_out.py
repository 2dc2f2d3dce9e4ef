"""What tests of ways out at a server share: two calls at once, and whether the gate does what the server tells."""

import os
import threading

from paddock_testing.run import seconds

GET = f"curl -sSf -m {int(seconds(60))} http://%s/"


def beside(*calls):
    """Runs them at the same time; gives what each returned."""
    got = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def one(i):
        start.wait()
        got[i] = calls[i]()

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds(120))
        assert not t.is_alive(), "a call hangs"
    return got


def reaches(client, sandbox, name):
    r = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"argv": ["bash", "-c", GET % name]})
    assert r.status == 200, r
    return r.json()["exit_code"] == 0


def check(client, sandbox):
    """The gate goes by the rules that the server tells."""
    allowed = client.get(f"/v1/sandboxes/{sandbox}/network").json()["allow"]
    assert [reaches(client, sandbox, n) for n in ("a.example", "b.example")] == [
        n in allowed for n in ("a.example", "b.example")], allowed


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
