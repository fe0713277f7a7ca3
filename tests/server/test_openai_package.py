"""The openai package drives the service unchanged: sync, async, streaming, tools, embeddings, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.server.serving import Served, cached, scripted

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments":  {"city": "Graz"}}\n</tool_call>'


@pytest.fixture(name="client")
def make_client(served: Served) -> Iterator[OpenAI]:
    """The package's client."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def hello(text: str = "Hello there") -> list[ChatCompletionMessageParam]:
    """One message."""
    return [{"role": "user", "content": text}]


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "livingkv"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("huge")
    assert caught.value.code == "model_not_found"


def test_a_conversation_of_two_turns(client: OpenAI, served: Served) -> None:
    messages = hello()
    first = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, seed=1, user=served.user)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, *hello("And now?")]
    second = client.chat.completions.create(model="tiny", messages=messages, max_tokens=8, user=served.user)
    assert first.usage is not None and cached(second.model_dump()) == first.usage.total_tokens


def test_a_seed_says_the_same_again(client: OpenAI, served: Served) -> None:
    texts = {
        client.chat.completions.create(model="tiny", messages=hello(), max_tokens=12, seed=7, user=served.user)
        .choices[0]
        .message.content
        for _ in range(3)
    }
    assert len(texts) == 1


def test_a_stream_says_what_the_whole_answer_says(client: OpenAI, served: Served) -> None:
    with client.chat.completions.create(
        model="tiny",
        messages=hello(),
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        user=served.user,
    ) as stream:
        chunks = list(stream)
    whole = client.chat.completions.create(
        model="tiny", messages=hello(), max_tokens=12, temperature=0, user=served.user
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_the_async_client(served: Served) -> None:
    async def talk() -> tuple[str, str]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            made = client.chat.completions.create
            whole = await made(model="tiny", messages=hello(), max_tokens=8, temperature=0, user=served.user)
            stream = await made(
                model="tiny", messages=hello(), max_tokens=8, temperature=0, user=served.user, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return whole.choices[0].message.content or "", text

    whole, streamed = asyncio.run(talk())
    assert whole == streamed


def test_a_tool_is_called_and_its_result_goes_on(
    client: OpenAI, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, CALL, "It is sunny.")
    made = client.chat.completions.create
    first = made(model="tiny", messages=hello("Weather?"), tools=[WEATHER], max_tokens=200, user=served.user)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    assert choice.message.tool_calls is not None
    call: Any = choice.message.tool_calls[0]
    assert call.function.name == "weather" and call.function.arguments == '{"city": "Graz"}'
    messages: list[Any] = [
        *hello("Weather?"),
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    second = made(model="tiny", messages=messages, tools=[WEATHER], max_tokens=200, user=served.user)
    assert second.choices[0].message.content == "It is sunny."
    assert first.usage is not None and cached(second.model_dump()) == first.usage.total_tokens
    assert "sunny" in served.stored(second.model_dump()["livingkv"]["session"]).decode()


def test_a_streamed_tool_call(client: OpenAI, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, CALL, CALL)
    stream = client.chat.completions.create(
        model="tiny", messages=hello("Weather?"), tools=[WEATHER], max_tokens=200, stream=True, user=served.user
    )
    chunks = list(stream)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(call.index, call.id is not None) for call in calls] == [(0, True)]
    assert calls[0].function is not None and calls[0].function.arguments == '{"city": "Graz"}'
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me see."
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("text", ['{"name": "weather", "arguments": {"city": "Graz"}}', '{"city": "Graz"}'])
def test_a_call_without_tags(client: OpenAI, served: Served, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    scripted(monkeypatch, text)
    stream = client.chat.completions.create(
        model="tiny", messages=hello("W?"), tools=[WEATHER], max_tokens=200, stream=True, user=served.user
    )
    chunks = list(stream)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert (len(calls), said) == ((1, "") if "weather" in text else (0, text))


def test_a_tool_call_that_is_cut_short_is_text(client: OpenAI, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, CALL)
    n_tokens = 30
    for stream in (False, True):
        made: Any = client.chat.completions.create(
            model="tiny", messages=hello("W?"), tools=[WEATHER], max_tokens=n_tokens, stream=stream, user=served.user
        )
        if stream:
            chunks = list(made)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            text, reason = made.choices[0].message.content, made.choices[0].finish_reason
        assert reason == "length" and text.startswith("Let me see.\n<tool_call>")


def test_logprobs(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=hello(), max_tokens=4, temperature=0, logprobs=True, top_logprobs=3, user=served.user
    )
    found = answer.choices[0].logprobs
    assert found is not None and found.content is not None and len(found.content) == 4
    for token in found.content:
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob) and len(token.top_logprobs) == 3
        assert token.bytes is not None and "\ufffd" not in token.token


def test_completions(client: OpenAI) -> None:
    whole = client.completions.create(
        model="tiny", prompt="One two", max_tokens=6, temperature=0, echo=True, logprobs=2
    )
    parts = client.completions.create(model="tiny", prompt="One two", max_tokens=6, temperature=0, stream=True)
    assert whole.choices[0].text == "One two" + "".join(part.choices[0].text for part in parts)
    assert whole.choices[0].logprobs is not None and len(whole.choices[0].logprobs.tokens or []) == 6


def test_embeddings(client: OpenAI) -> None:
    found = client.embeddings.create(model="tiny", input=["The shed is blue.", "The shed is blue."])
    assert found.data[0].embedding == found.data[1].embedding and found.usage.prompt_tokens > 0
    assert sum(value * value for value in found.data[0].embedding) == pytest.approx(1.0, abs=1e-3)
    plain = client.embeddings.create(model="tiny", input="The shed is blue.", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(found.data[0].embedding)


def test_errors_are_those_of_the_package(client: OpenAI, served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4o", messages=hello())
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as two:
        client.chat.completions.create(model="tiny", messages=hello(), n=2)
    assert (two.value.param, two.value.type) == ("n", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="tiny", messages=hello("word " * 4000), user=served.user)
    assert long.value.code == "context_length_exceeded" and "2048" in long.value.message
