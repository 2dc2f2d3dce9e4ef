"""Rules that are replaced while sandboxes are made: each creation goes by one set of rules, whole, and
one that begins after an answer to PUT goes by those.

PADDOCK_NIGHTLY=1 plays 3,000 rounds."""

import os
import threading

import pytest

from paddock_testing.server import Server

ROUNDS = 3000 if os.environ.get("PADDOCK_NIGHTLY") == "1" else 60
MAKERS = 2


def rules(n):
    """A rule that fits everybody, and a flag that is never reached."""
    return {"rules": [{"name": f"set {n}", "provider": "jail"}],
            "flags": [{"name": f"flag {n}", "salt": str(n), "provider": "jail", "percentage": 50}]}


@pytest.fixture(scope="module")
def server():
    with Server({"storage": "memory", "pool_max": 0, "requests_per_s": 0, "creates_per_s": 0}) as s:
        yield s


class Maker(threading.Thread):
    """Makes and deletes until it is stopped; `seen` are the reasons that it was told."""

    def __init__(self, server):
        super().__init__()
        self.api = server.client()
        self.seen = []
        self.wrong = None
        self.over = threading.Event()

    def run(self):
        try:
            while not self.over.is_set():
                made = self.api.post("/v1/sandboxes")
                assert made.status == 201, made
                self.seen.append(made.json()["reason"])
                assert self.api.delete(f"/v1/sandboxes/{made.json()['id']}").status == 204
        except BaseException as e:  # told by the test
            self.wrong = e
        finally:
            self.api.close()


def test_rules_are_replaced_while_sandboxes_are_made(server):
    admin = server.client(server.run("key", "create", "--admin", "--tenant", "ops").stdout.strip())
    assert admin.put("/v1/router", json=rules(0)).status == 200
    makers = [Maker(server) for _ in range(MAKERS)]
    for m in makers:
        m.start()

    try:
        for n in range(1, ROUNDS + 1):
            assert admin.put("/v1/router", json=rules(n)).status == 200
            # With these rules, whatever others are just being made with.
            answer = admin.post("/v1/sandboxes")
            assert answer.status == 201, answer
            made = answer.json()
            assert made["provider"] == "jail" and made["reason"] == f"rule set {n}", made
            assert admin.delete(f"/v1/sandboxes/{made['id']}").status == 204
            if n % 10 == 0:
                assert admin.put("/v1/router", json={"default": "nobody"}).status == 400
    finally:
        for m in makers:
            m.over.set()
        for m in makers:
            m.join()

    for m in makers:
        assert m.wrong is None, f"{m.wrong!r}\n{server.log()[-3000:]}"
        # One after the other, as they were put.
        numbers = [int(reason.removeprefix("rule set ")) for reason in m.seen]
        assert numbers == sorted(numbers) and numbers, m.seen
    assert len({reason for m in makers for reason in m.seen}) > 1, "they raced"
    listed = admin.get("/v1/sandboxes").json()["sandboxes"]
    assert not [s for s in listed if s["state"] != "gone"], listed
    admin.close()
