"""Limits, the queue in front of them, and sandboxes that lie ready."""

import time

import pytest

from helpers import Box, Later, metric
from paddock_testing.run import seconds, wait_for
from paddock_testing.server import Server, check_error


@pytest.fixture(scope="module")
def small():
    """A server with room for three sandboxes, two of a tenant, a queue of two and no pool."""
    with Server({"max_sandboxes": 3, "max_sandboxes_per_tenant": 2, "queue_max": 2,
                 "pool_max": 0}) as server:
        yield server


@pytest.fixture
def client(small):
    """A tenant of its own; its sandboxes are ended."""
    client = small.client(small.make_key(f"t{time.monotonic_ns()}"))
    yield client
    for s in client.get("/v1/sandboxes").json()["sandboxes"]:
        client.delete(f"/v1/sandboxes/{s['id']}")


def create(client, **body):
    answer = client.post("/v1/sandboxes", json=body)
    assert answer.status == 201, answer
    return answer.json()


# ---- queue ----


def test_a_creation_waits_until_one_ends(small, client):
    first, _ = create(client), create(client)
    waiting = Later(lambda: client.post("/v1/sandboxes", json={"queue_timeout_s": 30}))
    wait_for(lambda: metric(client, "paddock_queue_length") == 1, 10, "it is in the queue")
    time.sleep(0.3)
    assert not waiting.done
    # Another tenant is not held up by one that is at its own limit.
    other = small.client(small.make_key("beside"))
    made = create(other, queue_timeout_s=5)
    other.delete(f"/v1/sandboxes/{made['id']}")
    assert not waiting.done
    assert client.delete(f"/v1/sandboxes/{first['id']}").status == 204
    answer = waiting.get()
    assert answer.status == 201, answer
    queue = answer.json()["queue"]
    assert queue["position"] == 1 and queue["waited_ms"] >= 200
    assert metric(client, "paddock_queue_length") == 0


def test_ended_by_itself_makes_room_as_well(client):
    ends, _ = create(client), create(client)
    waiting = Later(lambda: client.post("/v1/sandboxes", json={"queue_timeout_s": seconds(30)}))
    wait_for(lambda: metric(client, "paddock_queue_length") == 1, 10, "it is in the queue")
    extended = client.post(f"/v1/sandboxes/{ends['id']}/extend", json={"idle_timeout_s": 1})
    assert extended.status == 200, extended
    answer = waiting.get()
    assert answer.status == 201 and answer.json()["queue"]["position"] == 1, answer
    assert client.get(f"/v1/sandboxes/{ends['id']}").json()["state"] == "gone"


def test_the_time_in_the_queue_is_bounded(client):
    create(client), create(client)
    before = metric(client, "paddock_queue_refused_total")
    since = time.monotonic()
    answer = client.post("/v1/sandboxes", json={"queue_timeout_s": 0.5})
    took = time.monotonic() - since
    error = check_error(answer, 503, "capacity")
    assert int(answer.headers["Retry-After"]) >= 1
    assert error["details"]["retry_after_s"] == int(answer.headers["Retry-After"])
    assert 0.4 <= took < seconds(10)
    assert metric(client, "paddock_queue_refused_total") == before + 1
    check_error(client.post("/v1/sandboxes", json={"queue_timeout_s": 0}), 503, "capacity")


def test_the_queue_is_bounded(client):
    made = [create(client), create(client)]
    waiting = [Later(lambda: client.post("/v1/sandboxes", json={"queue_timeout_s": 30}))
               for _ in range(2)]
    wait_for(lambda: metric(client, "paddock_queue_length") == 2, 10, "the queue is full")
    answer = client.post("/v1/sandboxes", json={"queue_timeout_s": 3})
    error = check_error(answer, 503, "capacity", says="2 creations wait")
    assert "Retry-After" in answer.headers and error["details"]["retry_after_s"] >= 1
    for s in made:
        client.delete(f"/v1/sandboxes/{s['id']}")
    assert [job.get().status for job in waiting] == [201, 201]


def test_first_come_first_served(client):
    first, second = create(client), create(client)
    jobs = []
    for n in (1, 2):
        jobs.append(Later(lambda: client.post("/v1/sandboxes", json={"queue_timeout_s": 30})))
        wait_for(lambda n=n: metric(client, "paddock_queue_length") == n, 10, "it is in the queue")
    client.delete(f"/v1/sandboxes/{first['id']}")
    assert jobs[0].get().status == 201
    assert not jobs[1].done
    client.delete(f"/v1/sandboxes/{second['id']}")
    assert jobs[1].get().json()["queue"]["position"] == 2


def test_get_or_create_waits_as_well(client):
    one = create(client)
    create(client)
    waiting = Later(lambda: client.put("/v1/sessions/u/queued", json={"queue_timeout_s": 30}))
    wait_for(lambda: metric(client, "paddock_queue_length") == 1, 10, "it is in the queue")
    client.delete(f"/v1/sandboxes/{one['id']}")
    assert waiting.get().status == 201
    assert client.put("/v1/sessions/u/queued").status == 200, "one that is there needs no room"


def test_the_whole_server_is_full(small, client):
    others = [small.client(small.make_key(f"full{n}")) for n in range(2)]
    create(others[0]), create(others[1])
    create(client)
    check_error(client.post("/v1/sandboxes", json={"queue_timeout_s": 0}), 503, "capacity")
    for other in others:
        for s in other.get("/v1/sandboxes").json()["sandboxes"]:
            other.delete(f"/v1/sandboxes/{s['id']}")
    create(client)


# ---- pool ----


def ready(client):
    return metric(client, "paddock_pool_ready")


def test_the_pool():
    """MAX_POOL_SIZE, its older name, holds; what does not fit is made cold."""
    with Server({"pool_min": 2}, env={"MAX_POOL_SIZE": "3"}) as server:
        client = server.client()
        wait_for(lambda: ready(client) == 4, 30, "the pool is filled: strict and dev")
        hits = metric(client, "paddock_pool_hits_total")
        made = create(client)
        assert made["from_pool"] is True
        assert metric(client, "paddock_pool_hits_total") == hits + 1
        # A warm one is as good as new, and its own.
        box = Box(client, made["id"])
        assert box.out("ls -A /workspace; pwd") == "/workspace\n"
        assert made["created_at"] == made["last_used_at"]
        # What is not usual is not taken from there.
        cold = create(client, limits={"pids": 50})
        assert cold["from_pool"] is False
        assert create(client, profile="dev")["from_pool"] is True
        assert create(client, profile="restricted")["from_pool"] is False
        wait_for(lambda: ready(client) >= 6, 30, "what was asked for is kept ready as well")
        # Many at once: the pool runs dry, nobody is refused, and it grows to its bound alone.
        made = [create(client)["from_pool"] for _ in range(8)]
        assert True in made
        misses = metric(client, "paddock_pool_misses_total")
        assert misses >= made.count(False)
        time.sleep(1)
        assert ready(client) <= 9, "3 of each of 3 profiles"
        # Those that wait are nobody's: they are in no list.
        listed = client.get("/v1/sandboxes?state=all").json()["sandboxes"]
        assert len(listed) == 12


def test_no_pool(client):
    assert create(client)["from_pool"] is False
    assert ready(client) == 0
