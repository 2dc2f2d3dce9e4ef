"""What becomes of the events of a cell, without a server: results, charts, much output, and a stream
that breaks off."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import paddock
from paddock._remote import RemoteBackend
from paddock.charts import read_chart
from paddock.contexts import Code
from paddock.execution import OUTPUT_MAX, Cell
from paddock.kernel import as_code_result

START = {"type": "start", "id": "e1", "execution_count": 3}
END = {"type": "end", "state": "kept", "reason": None}


def made_of(*events):
    cell = Cell()
    for event in (START, *events, END):
        cell.add(event)
    return cell.execution


def test_an_execution_has_the_fields_of_the_peer():
    done = made_of({"type": "stdout", "text": "a\n", "time": "t"},
                   {"type": "result", "text": "shown", "png": "aGk=", "extra": {}},
                   {"type": "result", "text": "42", "is_main_result": True,
                    "extra": {"x/y": 1}})
    assert done.execution_count == 3 and done.id == "e1"
    assert done.text == "42" and done.output == "a\n" and done.error is None and done.success
    assert done.results[0].formats() == ["text", "png"] and not done.results[0].is_main_result
    assert done.results[1].formats() == ["text", "x/y"]
    assert done.logs.stdout == ["a\n"] and done.logs.stderr == []
    assert json.loads(done.to_json())["results"][1] == {"text": "42", "x/y": 1}
    assert str(done.results[1]) == "Result(42)"


def test_an_execution_is_read_like_a_plain_result_too():
    done = made_of({"type": "stderr", "text": "e"},
                   {"type": "error", "name": "NameError", "value": "v", "traceback": "tb"})
    assert done["success"] is False and done["error"]["name"] == "NameError"
    assert done.get("stderr") == "e" and not done.state_lost
    plain = as_code_result(done, 1)
    assert plain.error == "tb" and not plain.success and plain.stderr == "e"


def test_what_is_not_known_is_left_out():
    done = made_of({"type": "keepalive"}, {"type": "new"},
                   {"type": "result", "text": "1", "newer": 2, "is_main_result": True})
    assert done.text == "1" and len(done.results) == 1


def test_callbacks_come_in_order():
    told = []
    cell = Cell((lambda m: told.append((m.line, m.error, m.timestamp)),
                 lambda m: told.append((m.line, m.error, m.timestamp)),
                 lambda r: told.append(r.text), lambda e: told.append(e.name)))
    for event in (START, {"type": "stdout", "text": "1", "time": 5}, {"type": "result", "text": "r"},
                  {"type": "stderr", "text": "2"}, {"type": "error", "name": "E"}, END):
        cell.add(event)
    assert told == [("1", False, 5), "r", ("2", True, None), "E"]


@pytest.mark.parametrize("size", [1001, 4096, OUTPUT_MAX, 3 * OUTPUT_MAX])
def test_of_much_output_the_beginning_and_the_end_are_kept(size):
    whole = "".join(f"{i:09}\n" for i in range(4 * OUTPUT_MAX // 10))
    done = made_of(*({"type": "stdout", "text": whole[at:at + size]}
                     for at in range(0, len(whole), size)))
    output = done.output
    assert output.startswith(whole[:OUTPUT_MAX // 2]) and output.endswith(whole[-OUTPUT_MAX // 2:])
    assert len(output) < OUTPUT_MAX + 100
    left_out = len(whole) - OUTPUT_MAX
    assert f"[... {left_out} characters left out ...]" in output


@pytest.mark.parametrize("size", [0, 1, OUTPUT_MAX // 2, OUTPUT_MAX - 1, OUTPUT_MAX])
def test_little_output_is_kept_whole(size):
    text = "x" * size
    for step in (1000, OUTPUT_MAX):
        done = made_of(*({"type": "stdout", "text": text[at:at + step]}
                         for at in range(0, size, step)))
        assert done.output == text


def test_charts_are_read():
    line = read_chart({"type": "line", "title": "T", "x_label": "x", "x_scale": "linear",
                       "x_ticks": [0, 1], "elements": [{"label": "a", "points": [[0, 1], [1, 2]]}]})
    assert isinstance(line, paddock.LineChart) and line.type is paddock.ChartType.LINE
    assert line.elements[0].points == [(0, 1), (1, 2)] and line.x_scale == paddock.ScaleType.LINEAR
    assert line.y_scale == paddock.ScaleType.UNKNOWN and line.title == "T"
    both = read_chart({"type": "superchart", "title": "", "elements": [
        {"type": "bar", "elements": [{"label": "l", "group": "g", "value": 2}]},
        {"type": "pie", "elements": [{"label": "l", "angle": 90, "radius": 1}]},
        {"type": "box_and_whisker", "elements": [{"label": "l", "median": 2, "outliers": [9]}]}]})
    bar, pie, box = both.elements
    assert bar.elements[0].value == 2 and pie.elements[0].angle == 90
    assert box.elements[0].median == 2 and box.elements[0].outliers == [9]


@pytest.mark.parametrize("wrong", [
    None, {}, [], "line", 5, {"type": "line", "elements": 5}, {"type": "line", "elements": [5]},
    {"type": "line", "elements": [{"points": [1]}]}, {"type": "superchart", "elements": ["x"]}])
def test_a_chart_that_is_none_does_not_break_the_result(wrong):
    done = made_of({"type": "result", "text": "t", "chart": wrong})
    assert done.results[0].text == "t"


def test_a_chart_of_a_kind_that_is_not_known_is_kept():
    chart = read_chart({"type": "heatmap", "title": "t", "elements": [1]})
    assert chart.type is paddock.ChartType.UNKNOWN and chart.to_dict()["type"] == "heatmap"


@pytest.mark.parametrize("reason, told", [
    ("timeout", "timed out after 3 s, did not heed"), ("oom", "no memory left"),
    ("exit", "ended its interpreter with status 9")])
def test_a_death_in_a_cell_is_told(reason, told):
    cell = Cell()
    for event in (START, {"type": "error", "name": "ContextRestarting",
                          "value": "the code ended its interpreter with status 9"},
                  {"type": "end", "state": "restarted", "reason": reason}):
        cell.add(event)
    plain = as_code_result(cell.execution, 3)
    assert plain.state_lost and not plain.success and told in plain.error
    assert "variables of earlier calls are gone" in plain.error


def test_a_death_between_cells_is_told_and_the_cell_counts():
    cell = Cell()
    for event in (START, {"type": "stdout", "text": "1\n"},
                  {"type": "end", "state": "restarted", "reason": "killed"}):
        cell.add(event)
    plain = as_code_result(cell.execution, 3)
    assert plain.success and plain.state_lost and plain.output == "1\n" and "new one" in plain.stderr


def test_a_program_that_ends_itself_is_done():
    for value, success in (("0", True), ("", True), ("3", False)):
        done = made_of({"type": "error", "name": "SystemExit", "value": value,
                        "traceback": f"SystemExit: {value}"})
        assert as_code_result(done, 1).success is success


# ---- a stream that breaks off ----

class Server(ThreadingHTTPServer):
    """Answers with the pieces of the script, one request each, and closes the connection behind
    them."""

    daemon_threads = True

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.seen, self.state = list(script), [], "running"
        threading.Thread(target=lambda: self.serve_forever(0.02), daemon=True).start()
        self.backend = RemoteBackend(f"http://127.0.0.1:{self.server_port}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        self.send_response(200)
        self.end_headers()
        if self.path == "/v1/sandboxes/box":
            self.wfile.write(json.dumps({"id": "box", "state": self.server.state}).encode())
            return
        self.server.seen.append((self.command, self.path, body, self.headers))
        if self.path.endswith("/interrupt"):
            self.wfile.write(b'{"interrupted": true}')
            return
        for number, event in self.server.script.pop(0) if self.server.script else []:
            kind = event["type"]
            self.wfile.write(f"id: {number}\nevent: {kind}\ndata: {json.dumps(event)}\n\n".encode())

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


def test_a_stream_goes_on_where_it_broke_off():
    out = [{"type": "stdout", "text": f"{i}\n"} for i in range(4)]
    with Server([[(1, START), (2, out[0])], [(3, out[1]), (4, out[2])], [],
                 [(5, out[3]), (6, END)]]) as server:
        done = Code(server.backend, "box").run("code", timeout=5, envs={"A": "1"})
    assert done.output == "0\n1\n2\n3\n"
    (method, path, body, headers), *again = server.seen
    assert (method, path) == ("POST", "/v1/sandboxes/box/contexts/python/execute")
    assert body == {"code": "code", "timeout_s": 5, "env": {"A": "1"}}
    assert headers["Idempotency-Key"] is None  # or a client that leaves would interrupt nothing
    assert [(m, p, h["Last-Event-ID"]) for m, p, _, h in again] == [
        ("GET", "/v1/sandboxes/box/contexts/python/executions/e1", last) for last in "244"]


@pytest.mark.parametrize("told", [[(1, START)], []])
def test_a_sandbox_that_ended_meanwhile_is_said(told):
    with Server([told]) as server:
        server.state = "gone"
        with pytest.raises(paddock.NotFoundError) as caught:
            Code(server.backend, "box").run("code")
    assert "sandbox box is gone" in caught.value.message


def test_a_cell_that_may_have_run_is_not_sent_again():
    with Server([[], [(1, START), (2, END)]]) as server:
        with pytest.raises(paddock.TransportError):
            Code(server.backend, "box").run("code", "bash")
    assert [p for _, p, _, _ in server.seen] == ["/v1/sandboxes/box/contexts/bash/execute"]


@pytest.mark.parametrize("error", [ZeroDivisionError, paddock.TransportError])
def test_who_leaves_a_cell_that_he_follows_again_interrupts_it(error):
    def tell(message):
        if message.line == "2":
            raise error("x")

    with Server([[(1, START), (2, {"type": "stdout", "text": "1"})],
                 [(3, {"type": "stdout", "text": "2"}), (4, END)]]) as server:
        with pytest.raises(error):
            Code(server.backend, "box").run("code", on_stdout=tell)
    assert [(m, p.rpartition("/")[2]) for m, p, _, _ in server.seen] == [
        ("POST", "execute"), ("GET", "e1"), ("POST", "interrupt")]


def test_an_exception_of_a_callback_comes_out():
    with Server([[(1, START), (2, {"type": "stdout", "text": "x"}), (3, END)]]) as server:
        with pytest.raises(ZeroDivisionError):
            Code(server.backend, "box").run("code", on_stdout=lambda _: 1 / 0)
    assert len(server.seen) == 1


def test_a_language_and_a_context_are_one_too_many():
    with pytest.raises(paddock.InvalidArgumentError) as caught:
        Code(RemoteBackend("http://127.0.0.1:1"), "box").run("1", "bash", "c1")
    assert "bash" in caught.value.message


def test_a_context_without_a_sandbox_says_so():
    with pytest.raises(paddock.InvalidArgumentError) as caught:
        paddock.Context("c1").restart()
    assert "create_code_context" in caught.value.message
