"""A model that follows a script: a server on loopback that speaks Anthropic's Messages and OpenAI's Chat
Completions, streaming and not, and as much of OpenAI's Responses as Codex reads, streaming.

    with Model([{"text": "I look.", "calls": [("run_command", {"command": "ls"})]}, {"text": "done"}]) as model:
        ... model.url ... model.requests

How this works: every request takes the next step of the script. A step is a dictionary, or a function of the
request's body that gives one:

    text, calls     what the model says and which tools it wants: (name, arguments); arguments that are a string are
                    sent as they are, so that they can be broken JSON
    status, message an error instead, with `headers`
    break_after     the connection breaks after so many events of the stream
    silent          no answer at all, until the server ends
    raw             the body as it is, as an event stream

A script that is at its end answers "the script is over". A function that raises makes the request fail, and
leaving the `with` raises it again. The official packages `anthropic` and `openai` take what it says
(sdk/python/tests/test_agent_model.py).
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = (11, 7)


class _Broken(Exception):
    pass


def _pieces(text, size=7):
    return [text[i:i + size] for i in range(0, len(text), size)]


def _as_json(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _calls(step):
    return [(f"call_{id(step) % 10000}_{n}", name, arguments)
            for n, (name, arguments) in enumerate(step.get("calls", []))]


def anthropic_message(step, model):
    content = [{"type": "text", "text": step["text"]}] if step.get("text") else []
    content += [{"type": "tool_use", "id": key, "name": name, "input": arguments}
                for key, name, arguments in _calls(step)]
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": content,
            "stop_reason": step.get("stop") or ("tool_use" if step.get("calls") else "end_turn"),
            "stop_sequence": None,
            "usage": {"input_tokens": step.get("input_tokens", USAGE[0]), "output_tokens": USAGE[1]}}


def anthropic_events(step, model):
    """The message as (event, data), in the order of the documentation."""
    whole = anthropic_message(step, model)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield "message_start", {"message": start}
    yield "ping", {}
    index = 0
    if step.get("text"):
        yield "content_block_start", {"index": index, "content_block": {"type": "text", "text": ""}}
        for piece in _pieces(step["text"]):
            yield "content_block_delta", {"index": index, "delta": {"type": "text_delta", "text": piece}}
        yield "content_block_stop", {"index": index}
        index += 1
    for key, name, arguments in _calls(step):
        yield "content_block_start", {"index": index, "content_block": {
            "type": "tool_use", "id": key, "name": name, "input": {}}}
        for piece in _pieces(_as_json(arguments)):
            yield "content_block_delta", {"index": index, "delta": {
                "type": "input_json_delta", "partial_json": piece}}
        yield "content_block_stop", {"index": index}
        index += 1
    yield "message_delta", {"delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
                            "usage": {"output_tokens": USAGE[1]}}
    yield "message_stop", {}


def openai_completion(step, model):
    message = {"role": "assistant", "content": step.get("text"), "refusal": None}
    if step.get("calls"):
        message["tool_calls"] = [{"id": key, "type": "function", "function": {
            "name": name, "arguments": _as_json(arguments)}} for key, name, arguments in _calls(step)]
    reason = step.get("stop") or ("tool_calls" if step.get("calls") else "stop")
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": openai_usage(step)}


def openai_usage(step):
    given = step.get("input_tokens", USAGE[0])
    return {"prompt_tokens": given, "completion_tokens": USAGE[1], "total_tokens": given + USAGE[1]}


def openai_chunks(step, model, with_usage):
    whole = openai_completion(step, model)

    def chunk(delta, reason=None):
        return {"id": whole["id"], "object": "chat.completion.chunk", "created": 1, "model": model,
                "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(step.get("text") or ""):
        yield chunk({"content": piece})
    for n, (key, name, arguments) in enumerate(_calls(step)):
        yield chunk({"tool_calls": [{"index": n, "id": key, "type": "function",
                                     "function": {"name": name, "arguments": ""}}]})
        for piece in _pieces(_as_json(arguments)):
            yield chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
    yield chunk({}, whole["choices"][0]["finish_reason"])
    if with_usage:
        yield {**chunk({}), "choices": [], "usage": openai_usage(step)}


def responses_events(step, model):
    """A call names its tool as it is, or as (namespace, name)."""
    whole = {"id": "resp_1", "object": "response", "model": model, "output": []}
    yield "response.created", {"response": whole}
    items = [{"type": "message", "role": "assistant", "id": "msg_1", "content": [
        {"type": "output_text", "text": step["text"], "annotations": []}]}] if step.get("text") else []
    for key, name, arguments in _calls(step):
        space, name = name if isinstance(name, tuple) else (None, name)
        items.append({"type": "function_call", "id": f"fc_{key}", "call_id": key, "name": name,
                      **({"namespace": space} if space else {}), "arguments": _as_json(arguments)})
    for index, item in enumerate(items):
        yield "response.output_item.done", {"output_index": index, "item": item}
    usage = {"input_tokens": USAGE[0], "output_tokens": USAGE[1], "total_tokens": sum(USAGE)}
    yield "response.completed", {"response": {**whole, "status": "completed", "output": items, "usage": usage}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        script = self.server.script
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        kind = {"/v1/messages": "anthropic", "/v1/chat/completions": "openai",
                "/v1/responses": "responses"}.get(self.path.split("?")[0])
        step = script.take(kind, self.path, dict(self.headers), body) if kind else {
            "status": 404, "message": f"no such path: {self.path}"}
        try:
            self.answer(kind, step, body)
        except (_Broken, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, kind, step, body):
        model = body.get("model", "scripted")
        if step.get("silent"):
            self.server.script.over.wait()
            raise _Broken
        if "status" in step:
            error = {"type": "error", "message": step.get("message", "scripted"), "code": None, "param": None}
            whole = {"type": "error", "error": error} if kind == "anthropic" else {"error": error}
            self.whole(step["status"], whole, step.get("headers"))
        elif "raw" in step:
            self.start_stream()
            self.chunk(step["raw"])
            self.chunk(b"")
        elif not body.get("stream"):
            self.whole(200, (anthropic_message if kind == "anthropic" else openai_completion)(step, model))
        else:
            self.stream(self.lines(kind, step, body, model), step.get("break_after"))

    @staticmethod
    def lines(kind, step, body, model):
        if kind != "openai":
            for name, data in (anthropic_events if kind == "anthropic" else responses_events)(step, model):
                yield f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n"
            return
        wanted = (body.get("stream_options") or {}).get("include_usage")
        for data in openai_chunks(step, model, wanted):
            yield f"data: {json.dumps(data)}\n\n"
        yield "data: [DONE]\n\n"

    def whole(self, status, data, headers=None):
        raw = json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(raw)),
                            **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def start_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, raw):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.flush()

    def stream(self, lines, break_after):
        self.start_stream()
        for n, line in enumerate(lines):
            if n == break_after:
                raise _Broken
            self.chunk(line.encode())
        self.chunk(b"")


class Model:
    """The server; `requests` has the bodies that it got, `headers` their headers."""

    def __init__(self, steps):
        self.steps = list(steps)
        self.requests = []
        self.headers = []
        self.kinds = []
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._failed = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.script = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, kind, path, headers, body):
        with self._lock:
            n = len(self.requests)
            self.requests.append(body)
            self.headers.append({name.lower(): value for name, value in headers.items()})
            self.kinds.append(kind)
            step = self.steps[n] if n < len(self.steps) else {"text": "the script is over"}
        if not callable(step):
            return step
        try:
            return step(body)
        except Exception as error:  # told by __exit__, in the test's own thread
            self._failed = self._failed or error
            return {"status": 400, "message": f"the script does not expect this: {error!r}"}

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if self._failed and kind is None:
            raise self._failed
