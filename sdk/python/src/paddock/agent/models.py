"""Models, over plain HTTP: Anthropic's Messages and OpenAI's Chat Completions, and whoever speaks one of them.

How this works: a conversation is a list of messages in a form of its own, which `store` keeps:

    {"role": "user", "text": ...}
    {"role": "assistant", "text": ..., "calls": [{"id", "name", "arguments"}]}      arguments as the model wrote them
    {"role": "tool", "id": ..., "text": ..., "error": bool, "images": [{"type", "data"}]}

A `Format` makes a request of it, and reads the answer event by event. What a server sends is foreign:
a reader takes what has the right type and raises ModelError when there is nothing to go on with.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Type

from .._http import Event, HttpClient
from ..errors import PaddockError, RequestTimeoutError
from .text import fit, one_line

Message = Dict[str, Any]

MAX_TOKENS = 16000  # of one answer
ANSWER_MAX = 8 * 1024 * 1024  # characters of one answer


class ModelError(Exception):
    """The model cannot be asked, or its answer cannot be used. The text is for people."""

    def __init__(self, text: str, *, again: bool = False, after: Optional[float] = None) -> None:
        super().__init__(text)
        self.again = again
        """Whether the same request may work later."""
        self.after = after
        """In so many seconds, if the server said so."""


@dataclass
class Call:
    """A tool that the model wants to be called."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Answer:
    """What the model said."""

    text: str = ""
    calls: List[Call] = field(default_factory=list)
    stop: str = ""
    input_tokens: int = 0
    output_tokens: int = 0


def arguments_of(text: str) -> Optional[Dict[str, Any]]:
    """The arguments of a call; None when they are no JSON object."""
    try:
        found = _fit(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _fit(value: Any) -> Any:
    """JSON whose strings can all be sent."""
    if isinstance(value, str):
        return fit(value)
    if isinstance(value, dict):
        return {fit(k): _fit(v) for k, v in value.items()}
    return [_fit(v) for v in value] if isinstance(value, list) else value


def _object(value: object) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> List[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return fit(value) if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class Reader:
    """Puts an answer together. `tell` hears its text as it comes."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.answer = Answer()
        self.is_whole = False
        self._tell = tell
        self._calls: Dict[int, Call] = {}
        self._size = 0

    def _grow(self, piece: str) -> str:
        self._size += len(piece)
        if self._size > ANSWER_MAX:
            raise ModelError(f"the model's answer has more than {ANSWER_MAX} characters")
        return piece

    def say(self, piece: str) -> None:
        """A piece of its text."""
        if piece:
            self.answer.text += self._grow(piece)
            self._tell(piece)

    def call(self, index: int, call_id: str = "", name: str = "", arguments: str = "") -> None:
        """A piece of a call."""
        call = self._calls.setdefault(index, Call("", ""))
        call.id = call.id or self._grow(call_id)
        call.name = call.name or self._grow(name)
        call.arguments += self._grow(arguments)

    def finish(self) -> Answer:
        """The whole answer."""
        for n, index in enumerate(sorted(self._calls)):
            call = self._calls[index]
            call.id = call.id or f"call_{n}"
            self.answer.calls.append(call)
        if not self.answer.text.strip() and not self.answer.calls:
            raise ModelError("the model answered nothing"
                             + (f" (it stopped by: {one_line(self.answer.stop)})" if self.answer.stop else ""),
                             again=True)
        return self.answer

    def event(self, data: Dict[str, Any]) -> None:
        """An event of the stream."""
        raise NotImplementedError

    def whole(self, data: Dict[str, Any]) -> None:
        """An answer that did not come as a stream."""
        raise NotImplementedError


class AnthropicReader(Reader):
    """Events of the Messages API."""

    def event(self, data: Dict[str, Any]) -> None:
        kind, index = data.get("type"), _count(data.get("index"))
        if kind == "message_start":
            self._usage(_object(data.get("message")).get("usage"))
        elif kind == "content_block_start":
            block = _object(data.get("content_block"))
            self.say(_text(block.get("text")))
            if block.get("type") == "tool_use":
                self.call(index, _text(block.get("id")), _text(block.get("name")))
        elif kind == "content_block_delta":
            delta = _object(data.get("delta"))
            self.say(_text(delta.get("text")))
            if delta.get("type") == "input_json_delta":
                self.call(index, arguments=_text(delta.get("partial_json")))
        elif kind == "message_delta":
            self.answer.stop = _text(_object(data.get("delta")).get("stop_reason"))
            self._usage(data.get("usage"))
        elif kind == "message_stop":
            self.is_whole = True
        elif kind == "error":
            raise ModelError("the model's server broke off: "
                             + one_line(_text(_object(data.get("error")).get("message"))), again=True)

    def whole(self, data: Dict[str, Any]) -> None:
        for index, block in enumerate(map(_object, _list(data.get("content")))):
            self.say(_text(block.get("text")))
            if block.get("type") == "tool_use":
                self.call(index, _text(block.get("id")), _text(block.get("name")),
                          json.dumps(block.get("input")))
        self.answer.stop = _text(data.get("stop_reason"))
        self._usage(data.get("usage"))
        self.is_whole = True

    def _usage(self, value: object) -> None:
        usage = _object(value)
        given = sum(_count(usage.get(name)) for name in (
            "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
        self.answer.input_tokens = given or self.answer.input_tokens
        self.answer.output_tokens = _count(usage.get("output_tokens")) or self.answer.output_tokens


class OpenAIReader(Reader):
    """Chunks of the Chat Completions API."""

    def event(self, data: Dict[str, Any]) -> None:
        if data.get("error"):
            raise ModelError("the model's server broke off: "
                             + one_line(_text(_object(data["error"]).get("message"))), again=True)
        for choice in map(_object, _list(data.get("choices"))[:1]):
            self._part(_object(choice.get("delta")), choice)
        self._usage(data.get("usage"))

    def whole(self, data: Dict[str, Any]) -> None:
        for choice in map(_object, _list(data.get("choices"))[:1]):
            self._part(_object(choice.get("message")), choice)
            self.is_whole = True
        self._usage(data.get("usage"))

    def _part(self, part: Dict[str, Any], choice: Dict[str, Any]) -> None:
        self.say(_text(part.get("content")) or _text(part.get("refusal")))
        for n, call in enumerate(map(_object, _list(part.get("tool_calls")))):
            function = _object(call.get("function"))
            index = call.get("index")
            self.call(index if isinstance(index, int) else n, _text(call.get("id")),
                      _text(function.get("name")), _text(function.get("arguments")))
        if _text(choice.get("finish_reason")):
            self.answer.stop = choice["finish_reason"]
            self.is_whole = True

    def _usage(self, value: object) -> None:
        usage = _object(value)
        self.answer.input_tokens = _count(usage.get("prompt_tokens")) or self.answer.input_tokens
        self.answer.output_tokens = _count(usage.get("completion_tokens")) or self.answer.output_tokens


class Format:
    """How requests of one kind of server look."""

    name: str
    key_variable: str
    url_variable: str
    url: str
    path: str
    model: str
    reader: Type[Reader]

    def headers(self, key: str) -> Dict[str, str]:
        """With the key."""
        raise NotImplementedError

    def body(self, model: str, system: str, messages: Sequence[Message],
             tools: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """The request."""
        raise NotImplementedError


class Anthropic(Format):
    """The Messages API."""

    name = "anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    url = "https://api.anthropic.com"
    path = "/v1/messages"
    model = "claude-sonnet-4-5"
    reader = AnthropicReader

    def headers(self, key: str) -> Dict[str, str]:
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def body(self, model: str, system: str, messages: Sequence[Message],
             tools: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        sent: List[Dict[str, Any]] = []
        for message in messages:
            role = "assistant" if message["role"] == "assistant" else "user"
            # Results, and what the user says behind them, are one message of the user.
            if sent and sent[-1]["role"] == role:
                sent[-1]["content"] += self._content(message)
            else:
                sent.append({"role": role, "content": self._content(message)})
        # What does not change from turn to turn is paid for once.
        return {"model": model, "max_tokens": MAX_TOKENS, "stream": True, "messages": sent,
                "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
                "tools": [{"name": t["name"], "description": t["description"],
                           "input_schema": t["inputSchema"]} for t in tools]}

    @staticmethod
    def _content(message: Message) -> List[Dict[str, Any]]:
        text = [{"type": "text", "text": message["text"]}] if message["text"] else []
        if message["role"] == "assistant":
            return [*text, *({"type": "tool_use", "id": c["id"], "name": c["name"],
                              "input": arguments_of(c["arguments"]) or {}}
                             for c in message.get("calls", []))]
        if message["role"] == "user":
            return text
        pictures = [{"type": "image", "source": {"type": "base64", "media_type": i["type"], "data": i["data"]}}
                    for i in message.get("images", [])]
        return [{"type": "tool_result", "tool_use_id": message["id"], "content": [*text, *pictures],
                 "is_error": bool(message.get("error"))}]


class OpenAI(Format):
    """The Chat Completions API, which most other servers speak, too."""

    name = "openai"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    url = "https://api.openai.com/v1"
    path = "/chat/completions"
    model = "gpt-5"
    reader = OpenAIReader

    def headers(self, key: str) -> Dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, model: str, system: str, messages: Sequence[Message],
             tools: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        sent: List[Dict[str, Any]] = [{"role": "system", "content": system}]
        pictures: List[Dict[str, Any]] = []
        for message in messages:
            if message["role"] != "tool" and pictures:
                sent.append({"role": "user", "content": pictures})
                pictures = []
            sent.append(self._message(message))
            # A result of a tool is text alone here: the user shows the pictures behind the last one.
            pictures += [{"type": "image_url", "image_url": {"url": f"data:{i['type']};base64,{i['data']}"}}
                         for i in message.get("images", [])]
        if pictures:
            sent.append({"role": "user", "content": pictures})
        return {"model": model, "messages": sent, "stream": True, "stream_options": {"include_usage": True},
                "tools": [{"type": "function", "function": {
                    "name": t["name"], "description": t["description"], "parameters": t["inputSchema"]}}
                    for t in tools]}

    @staticmethod
    def _message(message: Message) -> Dict[str, Any]:
        if message["role"] == "tool":
            return {"role": "tool", "tool_call_id": message["id"], "content": message["text"]}
        sent: Dict[str, Any] = {"role": message["role"], "content": message["text"] or None}
        if message.get("calls"):
            sent["tool_calls"] = [{"id": c["id"], "type": "function", "function": {
                "name": c["name"], "arguments": json.dumps(arguments_of(c["arguments"]) or {})}}
                for c in message["calls"]]
        return sent


FORMATS: Dict[str, Format] = {f.name: f for f in (Anthropic(), OpenAI())}


class Model:
    """One model of one server."""

    def __init__(self, form: Format, name: str, url: str, key: str, silence_s: float) -> None:
        self.form = form
        self.name = name
        self.url = url
        self._key = key
        self._silence_s = silence_s
        self._http = HttpClient(url, form.headers(key))

    def __str__(self) -> str:
        return f"{self.form.name}:{self.name}"

    def ask(self, system: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]],
            tell: Callable[[str], None]) -> Answer:
        """Its answer; `tell` hears the text as it comes. Raises ModelError."""
        reader = self.form.reader(tell)
        try:
            with self._http.open("POST", self.form.path, timeout=self._silence_s, idempotent=False,
                                 json_body=self.form.body(self.name, system, messages, tools)) as stream:
                if "json" in stream.headers.get("Content-Type", ""):
                    reader.whole(_read(stream.read_all().decode("utf-8", "replace")))
                else:
                    self._follow(reader, stream.events())
        except PaddockError as error:
            raise self._explain(error) from None
        if not reader.is_whole:
            raise ModelError("the model's answer broke off, or is none", again=True)
        return reader.finish()

    @staticmethod
    def _follow(reader: Reader, events: Any) -> None:
        event: Event
        for event in events:
            if event.data.strip() == "[DONE]":
                return
            reader.event(_read(event.data))

    def _explain(self, error: PaddockError) -> Exception:
        said = one_line(error.message, 300)
        if error.code == "cancelled":
            return error
        if isinstance(error, RequestTimeoutError):
            return ModelError(f"{self} said nothing for {self._silence_s:g} s; --model-timeout allows more",
                              again=False)
        if error.status in (401, 403):
            return ModelError(f"{self.url} refuses the key: {said}; set {self.form.key_variable} to a valid one")
        if error.status == 404:
            return ModelError(f"{self.url} does not have the model '{self.name}': {said}; choose one with --model "
                              f"{self.form.name}:NAME, or correct {self.form.url_variable}")
        again = error.status is None or error.status in (408, 409, 429) or error.status >= 500
        return ModelError(f"{self} cannot be asked: {said}", again=again, after=error.retry_after)


def _read(text: str) -> Dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ModelError(f"the model's server sent what is no answer: {one_line(text, 120)}", again=True)
    return data


def choose(wanted: Optional[str], silence_s: float,
           environ: Optional[Mapping[str, str]] = None) -> Model:
    """The model that is named by `provider:name`, PADDOCK_AGENT_MODEL or the key that is there."""
    env = os.environ if environ is None else environ
    wanted = wanted or env.get("PADDOCK_AGENT_MODEL") or ""
    provider, colon, name = wanted.partition(":")
    if not wanted:
        found = [f for f in FORMATS.values() if env.get(f.key_variable) or env.get(f.url_variable)]
        if not found:
            raise ModelError("there is no key of a model: set ANTHROPIC_API_KEY or OPENAI_API_KEY, or OPENAI_BASE_URL "
                             "and --model openai:NAME for a server of your own")
        provider, name = found[0].name, found[0].model
    elif not colon or not name or provider not in FORMATS:
        raise ModelError(f"--model: '{one_line(wanted)}' is no model: it is anthropic:NAME or openai:NAME")

    form = FORMATS[provider]
    key, url = env.get(form.key_variable, ""), env.get(form.url_variable) or form.url
    if not key and not env.get(form.url_variable):
        raise ModelError(f"{provider}:{name} needs a key: set {form.key_variable}")
    try:
        return Model(form, name, url, key.strip(), silence_s)
    except PaddockError as error:
        raise ModelError(f"{form.url_variable}: {error.message}") from None
