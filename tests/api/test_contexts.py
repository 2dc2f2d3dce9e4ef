"""Code contexts: cells that share variables, their results, and what is said when they are lost."""

import json

import pytest

from helpers import Box, Later, read_events
from paddock_testing.run import wait_for
from paddock_testing.server import check_error


class Contexts:
    """The contexts of one sandbox, as short calls."""

    def __init__(self, api, sandbox):
        self.api = api
        self.box = Box(api, sandbox)
        self.base = f"/v1/sandboxes/{sandbox}/contexts"

    def create(self, **body):
        answer = self.api.post(self.base, json=body)
        assert answer.status == 201, answer
        return answer.json()

    def ask(self, code, context="python", headers=None, **more):
        return self.api.post(f"{self.base}/{context}/execute", json={"code": code, **more},
                             headers=headers)

    def run(self, code, context="python", headers=None, **more):
        answer = self.ask(code, context, headers, **more)
        assert answer.status == 200, answer
        return answer.json()

    def lines(self, code, context="python", **more):
        answer = self.api.stream("POST", f"{self.base}/{context}/execute", json={"code": code, **more},
                                 headers={"Accept": "application/x-ndjson"})
        with answer:
            assert answer.status == 200, (answer.status, answer.read())
            return [json.loads(line) for line in answer.read().splitlines()]

    def get(self, context="python"):
        answer = self.api.get(f"{self.base}/{context}")
        assert answer.status == 200, answer
        return answer.json()

    def is_busy(self, context="python"):
        return self.get(context)["state"] == "busy"


@pytest.fixture
def contexts(api, sandbox):
    return Contexts(api, sandbox)


# ---- cells ----


def test_variables_stay(contexts):
    first = contexts.run("x = 20")
    assert first["results"] == [] and first["error"] is None and first["execution_count"] == 1
    assert first["state"] == "kept" and first["reason"] is None

    second = contexts.run("print('hello'); x + 1")
    assert second["stdout"] == "hello\n" and second["stderr"] == ""
    assert second["execution_count"] == 2
    assert [(r["text"], r["is_main_result"]) for r in second["results"]] == [("21", True)]


def test_an_exception_is_no_end(contexts):
    contexts.run("x = 1")
    bad = contexts.run("import sys; print('out'); print('err', file=sys.stderr); y")
    assert bad["error"]["name"] == "NameError" and "'y'" in bad["error"]["value"]
    assert "NameError" in bad["error"]["traceback"]
    assert bad["stdout"] == "out\n" and bad["stderr"] == "err\n" and bad["state"] == "kept"
    assert contexts.run("x")["results"][0]["text"] == "1"


def test_contexts_share_no_variables(contexts):
    made = contexts.create(language="python", cwd="/tmp", env={"WHO": "me"}, name="second")
    assert made["language"] == "python" and made["cwd"] == "/tmp" and made["name"] == "second"
    contexts.run("x = 1", made["id"])
    assert contexts.run("import os; os.getcwd(), os.environ['WHO'], x",
                        made["id"])["results"][0]["text"] == "('/tmp', 'me', 1)"
    assert contexts.run("x")["error"]["name"] == "NameError"


def test_variables_of_one_execution(contexts):
    assert contexts.run("import os; os.environ['ONCE']", env={"ONCE": "yes"})["results"][0]["text"] == "yes"
    assert contexts.run("os.environ.get('ONCE')")["results"] == []


def test_lines_come_in_order(contexts):
    lines = contexts.lines("print('one')\nimport sys\nfrom builtins import print\n"
                           "print('two', file=sys.stderr)\n1/0")
    assert [line["type"] for line in lines] == ["start", "stdout", "stderr", "error", "end"]
    assert lines[0]["execution_count"] == 1 and lines[1]["text"] == "one\n"
    assert lines[3]["name"] == "ZeroDivisionError" and lines[4]["state"] == "kept"


def test_text_and_results_keep_their_order(contexts):
    lines = contexts.lines("class Shown:\n"
                           "    def _repr_html_(self): return '<b>x</b>'\n"
                           "for i in range(3):\n"
                           "    print(i)\n"
                           "    display(Shown())\n")
    kinds = [line.get("text", "").strip() if line["type"] == "stdout" else line["type"] for line in lines]
    assert kinds == ["start", "0", "result", "1", "result", "2", "result", "end"]


def test_everything_beyond_ascii_is_escaped(contexts):
    answer = contexts.api.stream("POST", f"{contexts.base}/python/execute",
                                 json={"code": "print('ä\u2028\U0001f600'); 'ü\x85'"},
                                 headers={"Accept": "application/x-ndjson"})
    with answer:
        text = answer.read()
    assert text.isascii()
    lines = [json.loads(line) for line in text.decode("ascii").split("\n")[:-1]]
    assert lines[1]["text"] == "ä\u2028\U0001f600\n"
    assert [line["text"] for line in lines if line["type"] == "result"] == ["ü\\x85"]


def test_what_looks_like_a_mark_is_text(contexts):
    found = contexts.run(r"print('a\x1eb\x1e 1\x1e', end='\x1e'); print('\x1e' * 3 + 'x 2\x1e')")
    assert found["stdout"] == "a\x1eb\x1e 1\x1e\x1e\x1e\x1e\x1ex 2\x1e\n"


def test_long_output_has_a_head_and_a_tail(contexts):
    found = contexts.run("print('head'); print('x' * 5_000_000); print('tail')")
    assert found["truncated"] and found["stdout"].startswith("head\n")
    assert found["stdout"].endswith("tail\n") and "are left out" in found["stdout"]
    assert len(found["stdout"]) < 4_000_000


# ---- names ----


def test_the_list_has_the_usual_languages_first(contexts):
    listed = contexts.api.get(contexts.base).json()["contexts"]
    assert [c["id"] for c in listed][:1] == ["python"]
    assert all(c["state"] == "cold" and c["pid"] == 0 for c in listed)
    made = contexts.create()
    listed = contexts.api.get(contexts.base).json()["contexts"]
    assert listed[-1]["id"] == made["id"] and listed[-1]["state"] == "idle" and listed[-1]["pid"] > 1


def test_a_deleted_context_is_gone(contexts):
    made = contexts.create()["id"]
    contexts.run("x = 1", made)
    pid = contexts.get(made)["pid"]
    assert contexts.api.delete(f"{contexts.base}/{made}").status == 204
    check_error(contexts.ask("1", made), 404, "not_found")
    check_error(contexts.api.delete(f"{contexts.base}/{made}"), 404, "not_found")
    wait_for(lambda: not any(p["pid"] == pid for p in contexts.box.processes()), 20, "its process is gone")


def test_a_default_context_is_made_anew(contexts):
    contexts.run("x = 1")
    assert contexts.api.delete(f"{contexts.base}/python").status == 204
    again = contexts.run("'x' in dir()")
    assert again["results"][0]["text"] == "False" and again["execution_count"] == 1


def test_bad_requests(contexts):
    check_error(contexts.ask("1", "nosuchcontext"), 404, "not_found")
    check_error(contexts.ask(5), 400, "invalid")
    check_error(contexts.api.post(contexts.base, json={"cwd": "tmp"}), 400, "invalid")
    check_error(contexts.api.post(contexts.base, json={"cwd": "/no/such/place"}), 400, "invalid")
    check_error(contexts.ask("x" * (1 << 20) + "y"), 400, "invalid")
    assert contexts.run("#" * ((1 << 20) - 2) + "\n1")["results"][0]["text"] == "1"


def test_no_more_than_so_many(contexts):
    made = [contexts.create()["id"] for _ in range(16)]
    refused = contexts.api.post(contexts.base, json={})
    check_error(refused, 409, "conflict")
    assert "contexts_max" in refused.json()["error"]["message"]
    contexts.api.delete(f"{contexts.base}/{made[0]}")
    contexts.create()


def test_default_contexts_count_when_they_have_a_process(contexts):
    for _ in range(16):
        contexts.create()
    check_error(contexts.ask("1"), 409, "conflict")
    assert contexts.get()["state"] == "cold"


def test_default_contexts_that_cannot_start_are_forgotten(contexts):
    """Any word may be the name of a kernel: they would fill the table for ever."""
    def listed():
        return [c["id"] for c in contexts.api.get(contexts.base).json()["contexts"]]

    before = listed()
    assert contexts.api.put(f"{contexts.box.base}/env", json={"cwd": "/no/such/place"}).status == 200
    check_error(contexts.ask("true", "bash"), 400, "invalid")
    assert listed() == before

    assert contexts.api.put(f"{contexts.box.base}/env", json={"cwd": "/tmp"}).status == 200
    contexts.run("true", "bash")  # the control
    assert listed() == [*before, "bash"]


def test_executions_are_counted(contexts):
    def metric(name):
        return next(float(line.split()[1]) for line in contexts.api.get("/metrics").text.splitlines()
                    if line.startswith(name + " "))

    before = metric("paddock_context_executions_total"), metric("paddock_context_restarts_total")
    contexts.run("1")
    contexts.run("import os; os._exit(1)")
    assert metric("paddock_context_executions_total") >= before[0] + 2
    assert metric("paddock_context_restarts_total") >= before[1] + 1


# ---- ends ----


def test_exit_is_told(contexts):
    contexts.run("x = 1")
    dead = contexts.run("print('last'); import os; os._exit(9)")
    assert dead["state"] == "restarted" and dead["reason"] == "exit" and dead["stdout"] == "last\n"
    assert dead["error"]["name"] == "ContextRestarting" and "status 9" in dead["error"]["value"]
    fresh = contexts.run("'x' in dir()")
    assert fresh["results"][0]["text"] == "False"
    assert fresh["state"] == "restarted" and fresh["reason"] == "exit"
    assert contexts.run("1")["state"] == "kept"


def test_death_between_cells_is_told_by_the_next(contexts):
    contexts.run("x = 1")
    pid = contexts.get()["pid"]
    contexts.box.signal(pid, "SIGKILL")
    wait_for(lambda: contexts.get()["state"] == "cold", 20, "its end is known")
    fresh = contexts.run("'x' in dir()")
    assert fresh["state"] == "restarted" and fresh["reason"] == "killed"
    assert fresh["results"][0]["text"] == "False" and fresh["error"] is None


def test_restart_loses_the_variables(contexts):
    contexts.run("x = 1")
    assert contexts.api.post(f"{contexts.base}/python/restart").status == 200
    again = contexts.run("'x' in dir()")
    assert again["results"][0]["text"] == "False" and again["state"] == "kept"


def test_a_timeout_interrupts_and_keeps(contexts):
    contexts.run("x = 1")
    late = contexts.run("import time; time.sleep(1000)", timeout_s=0.5)
    assert late["error"]["name"] == "KeyboardInterrupt"
    assert late["state"] == "kept" and late["reason"] == "timeout"
    assert contexts.run("x")["results"][0]["text"] == "1"


def test_an_interrupt_that_found_nobody_is_repeated(contexts):
    """A shell that is just starting a program has the signal for itself, and the program is not there yet."""
    late = contexts.run("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(1.5)\n"
                        "signal.signal(signal.SIGINT, signal.default_int_handler)\ntime.sleep(1000)", timeout_s=0.5)
    assert late["error"]["name"] == "KeyboardInterrupt"
    assert late["state"] == "kept" and late["reason"] == "timeout"


def test_a_timeout_that_is_not_heeded_kills(contexts):
    late = contexts.run("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
                        "while True: time.sleep(1000)", timeout_s=0.5)
    assert late["state"] == "restarted" and late["reason"] == "timeout"
    assert late["error"]["name"] == "ContextRestarting"
    assert contexts.run("1")["results"][0]["text"] == "1"


def test_interrupt(contexts):
    later = Later(lambda: contexts.run("import time; time.sleep(1000)", timeout_s=0))
    wait_for(contexts.is_busy, 20, "it runs")

    def interrupted():
        return contexts.api.post(f"{contexts.base}/python/interrupt").json()["interrupted"]

    wait_for(interrupted, 20, "it is interrupted")
    ended = later.get()
    assert ended["error"]["name"] == "KeyboardInterrupt" and ended["reason"] == "interrupted"
    assert ended["state"] == "kept"
    assert contexts.api.post(f"{contexts.base}/python/interrupt").json() == {"interrupted": False}


def test_whoever_leaves_interrupts(contexts):
    contexts.run("x = 1")
    answer = contexts.api.stream("POST", f"{contexts.base}/python/execute",
                                 json={"code": "import time; time.sleep(1000)", "timeout_s": 0},
                                 headers={"Accept": "application/x-ndjson"})
    with answer:
        assert json.loads(answer.readline())["type"] == "start"
    assert contexts.run("x")["results"][0]["text"] == "1"


# ---- the line ----


def test_executions_wait_for_each_other(contexts):
    contexts.run("import os, time; order = []")
    held = "while not os.path.exists('go'): time.sleep(0.02)\norder.append(0)"
    waiting = [Later(lambda: contexts.ask(held))]
    wait_for(contexts.is_busy, 20, "the first one runs")
    for n in range(1, 17):
        waiting.append(Later(lambda n=n: contexts.ask(f"order.append({n})")))
        wait_for(lambda n=n: contexts.get()["waiting"] == n, 20, f"{n} wait")

    refused = contexts.ask("1")
    check_error(refused, 429, "rate_limited")
    contexts.box.out("touch go")
    assert [w.get().status for w in waiting] == [200] * 17
    assert contexts.run("order")["results"][0]["json"] == list(range(17))


def test_a_detached_execution_is_asked_for_later(contexts):
    started = contexts.ask("import time; print('a'); time.sleep(0.2); print('b'); 7", detached=True)
    assert started.status == 202, started
    id = started.json()["id"]

    def ended():
        found = contexts.api.get(f"{contexts.base}/python/executions/{id}").json()
        return found["state"] == "kept" and found

    found = wait_for(ended, 20, "it ends")
    assert found["stdout"] == "a\nb\n" and found["results"][0]["text"] == "7" and found["id"] == id


def test_a_key_runs_once(contexts):
    contexts.run("n = 0")
    first = contexts.run("n += 1; n", headers={"Idempotency-Key": "k1"})
    again = contexts.ask("n += 1; n", headers={"Idempotency-Key": "k1"})
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json() == first and first["results"][0]["text"] == "1"
    assert contexts.run("n")["results"][0]["text"] == "1"
    check_error(contexts.ask("n += 2", headers={"Idempotency-Key": "k1"}), 409, "conflict")


def test_events_are_resumed(contexts):
    answer = contexts.api.stream("POST", f"{contexts.base}/python/execute",
                                 json={"code": "for i in range(5): print(i)\n'end'"},
                                 headers={"Accept": "text/event-stream"})
    with answer:
        events = list(read_events(answer))
    id = events[0].data["id"]
    assert events[0].name == "start" and events[-1].name == "end"

    for k, event in enumerate(events[:-1]):
        answer = contexts.api.stream("GET", f"{contexts.base}/python/executions/{id}",
                                     headers={"Accept": "text/event-stream", "Last-Event-ID": event.id})
        with answer:
            rest = list(read_events(answer))
        text = "".join(e.data["text"] for e in events[k + 1:] if e.name == "stdout")
        assert "".join(e.data["text"] for e in rest if e.name == "stdout") == text
        assert [e.name for e in rest if e.name != "stdout"] == \
               [e.name for e in events[k + 1:] if e.name != "stdout"]
