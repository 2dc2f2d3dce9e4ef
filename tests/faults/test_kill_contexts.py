"""kill -9 of the server while contexts print and draw: every byte and every result arrives once.

PADDOCK_NIGHTLY=1 has 50 contexts and more kills."""

import base64
import http.client
import json
import os
import random
import time

import pytest

from breaking import Box, Later, Victim, read_events
from paddock_testing.run import rounds, wait_for

NIGHTLY = os.environ.get("PADDOCK_NIGHTLY") == "1"
CONTEXTS, KILLS, ROUNDS = (50, 8, 2000) if NIGHTLY else (6, 2, 300)

# Text and pictures in turn, in a pace at which the kills hit the middle.
CELL = """
import time
class Picture:
    def __init__(self, n): self.n = n
    def _repr_png_(self): return b'PNG %d' % self.n
for n in range(ROUNDS):
    print(n)
    if n % 10 == 0:
        display(Picture(n))
    if n % 7 == 0:
        time.sleep(0.01)
""".replace("ROUNDS", str(ROUNDS))


@pytest.fixture(scope="module")
def server():
    with Victim() as v:
        yield v


def execute(api, url, code, key=None, **more):
    headers = {"Idempotency-Key": key} if key else {}
    return api.post(f"{url}/execute", json={"code": code, "timeout_s": 0, **more}, headers=headers)


def follow(server, url, execution):
    """All events of an execution, whatever happens to the server meanwhile."""
    found, last = [], None

    def read():
        nonlocal last
        client = server.client()
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        try:
            with client.stream("GET", f"{url}/executions/{execution}", headers=headers) as answer:
                if answer.status != 200:
                    return False
                for name, data, id in read_events(answer):
                    found.append((name, json.loads(data)))
                    last = id
        except (OSError, http.client.HTTPException):
            pass  # killed: from the last event on
        finally:
            client.close()
        return found and found[-1][0] == "end"

    wait_for(read, 120, f"the end of {execution}")
    return found


def check_whole(events):
    """Each number once and in order, and each picture behind the number that it was drawn after."""
    text, pictures = "", []
    for name, data in events:
        if name == "stdout":
            text += data["text"]
        elif name == "result":
            number = int(base64.b64decode(data["png"]).split()[1])
            pictures.append(number)
            assert text.endswith(f"{number}\n"), (text[-40:], number)
    assert text == "".join(f"{n}\n" for n in range(ROUNDS))
    assert pictures == list(range(0, ROUNDS, 10))
    assert [name for name, _ in events if name not in ("stdout", "result")] == ["start", "end"]
    assert events[-1][1]["state"] == "kept" and not events[-1][1]["truncated"]


def test_every_byte_and_result_arrives_once(server, api):
    boxes = [Box(api) for _ in range((CONTEXTS + 9) // 10)]
    urls = []
    for n in range(CONTEXTS):
        base = f"{boxes[n % len(boxes)].url}/contexts"
        made = api.post(base, json={"name": str(n)})
        assert made.status == 201, made
        urls.append(f"{base}/{made.json()['id']}")

    ids = [execute(api, url, CELL, detached=True).json()["id"] for url in urls]
    followers = [Later(lambda u=url, i=id: follow(server, u, i)) for url, id in zip(urls, ids)]
    for _ in range(KILLS):
        wait_for(lambda: api.get(f"{urls[0]}/executions/{ids[0]}").json()["stdout"], 60, "it prints")
        server.kill_and_restart()
    for follower in followers:
        assert follower.end(240).error is None, follower.error
        check_whole(follower.value)

    # Names, counts and variables are there, and what has ended is told again.
    for n, (url, id) in enumerate(zip(urls, ids)):
        known = api.get(url).json()
        assert known["name"] == str(n) and known["execution_count"] == 1
        again = execute(api, url, "n").json()
        assert again["results"][0]["text"] == str(ROUNDS - 1) and again["state"] == "kept"
        assert api.get(f"{url}/executions/{id}").json()["stdout"].startswith("0\n1\n")
    for box in boxes:
        box.delete()


def test_a_retry_by_its_key_runs_nothing_twice(server, api, box):
    url = f"{box.url}/contexts/python"
    execute(api, url, "n = 0; import time, os")
    code = "n += 1; open('/tmp/runs', 'w').close(); time.sleep(2); n"
    first = Later(lambda: execute(server.client(), url, code, key="one"))
    wait_for(lambda: box.try_exec("test -e /tmp/runs").json()["exit_code"] == 0, 60, "it runs")
    server.kill_and_restart()
    assert first.end().error is not None

    again = execute(api, url, code, key="one")
    assert again.status == 200 and again.headers["Idempotent-Replayed"] == "true", again
    assert again.json()["results"][0]["text"] == "1"
    other = execute(api, url, "n += 5", key="one")
    assert other.status == 409
    assert execute(api, url, "n").json()["results"][0]["text"] == "1"


def test_a_timeout_outlives_the_server(server, api, box):
    url = f"{box.url}/contexts/python"
    started = execute(api, url, "import time; time.sleep(1000)", detached=True, timeout_s=1)
    id = started.json()["id"]
    wait_for(lambda: api.get(f"{url}/executions/{id}").json()["state"] == "running", 60, "it runs")
    server.kill_and_restart()
    ended = wait_for(lambda: (x := api.get(f"{url}/executions/{id}").json())["state"] == "kept" and x, 60, "it ends")
    assert ended["error"]["name"] == "KeyboardInterrupt"
    assert execute(api, url, "1").json()["results"][0]["text"] == "1"


def test_what_ended_while_there_was_no_server_is_told(server, api, box):
    url = f"{box.url}/contexts/python"
    code = "import time, os; x = 1; print('last', flush=True); time.sleep(1); os._exit(3)"
    id = execute(api, url, code, detached=True).json()["id"]
    wait_for(lambda: api.get(f"{url}/executions/{id}").json()["stdout"], 60, "it prints")
    server.kill_and_restart()
    ended = wait_for(lambda: (x := api.get(f"{url}/executions/{id}").json())["state"] == "restarted" and x, 60,
                     "its end is known")
    assert ended["stdout"] == "last\n" and "status 3" in ended["error"]["value"]
    fresh = execute(api, url, "'x' in dir()").json()
    assert fresh["state"] == "restarted" and fresh["results"][0]["text"] == "False"


def test_forks_go_on(server, api, box):
    url = f"{box.url}/contexts/python"
    execute(api, url, "x = [1]")
    copy = api.post(f"{url}/fork").json()["id"]
    other = f"{box.url}/contexts/{copy}"
    execute(api, url, "x.append(2)", keep_before=True)
    id = execute(api, other, "import time; print('a', flush=True); time.sleep(1); print('b'); x",
                 detached=True).json()["id"]
    wait_for(lambda: api.get(f"{other}/executions/{id}").json()["stdout"], 60, "it prints")
    server.kill_and_restart()
    ended = wait_for(lambda: (f := api.get(f"{other}/executions/{id}").json())["state"] == "kept" and f, 60, "it ends")
    assert ended["stdout"] == "a\nb\n" and ended["results"][0]["text"] == "[1]"
    assert execute(api, url, "x").json()["results"][0]["text"] == "[1, 2]"
    assert api.post(f"{url}/undo").status == 409  # what was kept went with the server
    api.delete(url)
    api.delete(other)
    wait_for(lambda: api.get(f"{box.url}/processes").json()["processes"] == [], 60, "nothing is left")


def test_a_kill_while_contexts_fork_leaves_no_copy_without_a_name(server, api, box):
    """Whatever of a fork there was: it has a name and answers, or it has ended."""
    base = f"{box.url}/contexts"
    execute(api, f"{base}/python", "x = bytearray(50 << 20); x[:] = b'1' * len(x)")
    chance = random.Random(1)
    count = "cat /proc/[0-9]*/comm | grep -c '^python3'"

    for number in range(rounds(4, 60)):
        asked = Later(lambda: server.client().post(f"{base}/python/fork"))
        time.sleep(chance.random() * 0.02)
        server.kill_and_restart()
        asked.end()
        named = [c for c in api.get(base).json()["contexts"] if c["pid"]]
        wait_for(lambda n=len(named): box.try_exec(count).json()["stdout"] == f"{n}\n", 30,
                 f"as many interpreters as names, in round {number}")
        for context in named:
            assert execute(api, f"{base}/{context['id']}", "len(x)").json()["results"][0]["text"] == str(50 << 20)
            if context["id"] != "python":
                assert api.delete(f"{base}/{context['id']}").status == 204


def test_a_deleted_context_does_not_come_back(server, api, box):
    made = api.post(f"{box.url}/contexts", json={}).json()["id"]
    assert api.delete(f"{box.url}/contexts/{made}").status == 204
    server.kill_and_restart()
    assert made not in [c["id"] for c in api.get(f"{box.url}/contexts").json()["contexts"]]
