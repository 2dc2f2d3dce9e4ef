"""The scripted model is what the official packages expect, so that what is tried with it is tried with the
formats of others."""

import json

import pytest
from paddock_testing.model import Model

SCRIPT = [{"text": "I look.", "calls": [("run_command", {"command": "ls"}), ("read_file", {"path": "a"})]},
          {"text": "done"}]
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}


@pytest.fixture
def model():
    with Model(SCRIPT) as m:
        yield m


@pytest.mark.parametrize("streams", [False, True])
def test_anthropics_package_takes_it(model, streams):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(api_key="k", base_url=model.url, max_retries=0)
    said = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}],
            "tools": [{"name": "run_command", "description": "d", "input_schema": SCHEMA}]}

    def ask():
        if not streams:
            return client.messages.create(**said)
        with client.messages.stream(**said) as stream:
            return stream.get_final_message()

    first, second = ask(), ask()
    assert [b.type for b in first.content] == ["text", "tool_use", "tool_use"]
    assert first.content[0].text == "I look." and first.content[1].input == {"command": "ls"}
    assert first.stop_reason == "tool_use" and first.usage.input_tokens == 11
    assert first.usage.output_tokens == 7
    assert second.content[0].text == "done" and second.stop_reason == "end_turn"


@pytest.mark.parametrize("streams", [False, True])
def test_openais_package_takes_it(model, streams):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(api_key="k", base_url=model.url + "/v1", max_retries=0)
    said = {"model": "m", "messages": [{"role": "user", "content": "hello"}],
            "tools": [{"type": "function", "function": {"name": "run_command", "parameters": SCHEMA}}]}

    def ask():
        if not streams:
            return client.chat.completions.create(**said)
        with client.chat.completions.stream(stream_options={"include_usage": True}, **said) as stream:
            return stream.get_final_completion()

    first, second = ask(), ask()
    message = first.choices[0].message
    assert message.content == "I look." and first.choices[0].finish_reason == "tool_calls"
    assert [json.loads(c.function.arguments) for c in message.tool_calls] == [{"command": "ls"}, {"path": "a"}]
    assert first.usage.prompt_tokens == 11 and first.usage.completion_tokens == 7
    assert second.choices[0].message.content == "done" and second.choices[0].finish_reason == "stop"


def test_its_errors_are_theirs():
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")
    with Model([{"status": 429, "headers": {"Retry-After": "1"}}, {"status": 401}]) as model:
        with pytest.raises(anthropic.RateLimitError):
            anthropic.Anthropic(api_key="k", base_url=model.url, max_retries=0).messages.create(
                model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(api_key="k", base_url=model.url + "/v1", max_retries=0).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}])


def test_a_step_that_does_not_expect_the_request_fails_the_test():
    def strict(body):
        assert body["messages"] == []

    with pytest.raises(AssertionError):
        with Model([strict]) as model:
            import urllib.error
            import urllib.request
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(urllib.request.Request(
                    model.url + "/v1/messages", b'{"messages": [1]}'), timeout=30)
