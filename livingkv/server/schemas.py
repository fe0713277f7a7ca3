"""The bodies of OpenAI's requests, as far as they are understood, checked. What is unknown is left aside, as clients
expect; what is known and cannot be done is refused.

Knows fields and ranges; knows no model and no store.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from livingkv.results import Recall
from livingkv.sampling import Sampling

_DEPTH = 32
MOST_MESSAGES = 4096
"""In one request: what is longer is refused before each of them is looked at."""


def _sound(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate at {error.start}: Unicode text is allowed") from error
    return text


def _shallow(value: Any) -> Any:
    """Refuse JSON that is nested too deep, and strings in it that are no text."""
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if depth > _DEPTH:
            raise ValueError(f"nested deeper than {_DEPTH}")
        if isinstance(each, str):
            _sound(each)
        elif isinstance(each, dict):
            waiting += [(item, depth + 1) for pair in each.items() for item in pair]
        elif isinstance(each, list):
            waiting += [(item, depth + 1) for item in each]
    return value


Text = Annotated[str, AfterValidator(_sound)]
Json = Annotated[Any, AfterValidator(_shallow)]
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Lenient(BaseModel):
    """Base of all bodies: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class Part(Lenient):
    """A part of a message's content: text only."""

    type: Literal["text"]
    text: Text


class CalledFunction(Lenient):
    """The function of a tool call; its arguments are JSON text."""

    name: Text
    arguments: Text | dict[str, Json] = "{}"


class CalledTool(Lenient):
    """A tool call in a message of the assistant."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Lenient):
    """One message. What an assistant's message has besides, such as its reasoning, goes to the template untouched."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    name: Text | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: Text | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.role in ("user", "tool", "system", "developer") and self.content is None:
            raise ValueError(f"a message of the {self.role} needs content")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as a chat template gets it."""
        parts = self.content if isinstance(self.content, list) else None
        content = "".join(part.text for part in parts) if parts is not None else self.content or ""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        for name in ("name", "tool_call_id", "reasoning", "reasoning_content"):
            if getattr(self, name) is not None:
                message[name] = getattr(self, name)
        if self.tool_calls:
            message["tool_calls"] = [_plain_call(call) for call in self.tool_calls]
        return message


def _plain_call(call: CalledTool) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = _shallow(json.loads(arguments))
        except (ValueError, RecursionError):
            arguments = call.function.arguments
    return {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}


class Tool(Lenient):
    """A tool that may be called."""

    type: Literal["function"]
    function: dict[str, Json]

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if not isinstance(self.function.get("name"), str) or not self.function["name"]:
            raise ValueError("a function needs a name")
        return self


class StreamOptions(Lenient):
    """include_usage: one more chunk at the end tells the usage."""

    include_usage: bool = False


class ResponseFormat(Lenient):
    """Plain text is all that can be promised."""

    type: Literal["text"]


def _not_forced(value: Any) -> Any:
    """Which tool is called, and in what form a reply is written, is the model's own choice."""
    if value not in (None, "none", "auto"):
        raise ValueError("a call cannot be forced here: auto and none are allowed")
    return value


def _only_text(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") in ("json_object", "json_schema"):
        raise ValueError("JSON cannot be promised here: ask for it in words, or give a tool")
    return value


class MemoryField(Lenient):
    """What this service knows beside OpenAI's fields. history "stored": the messages follow what the session holds.
    keep: False leaves the turn out of the memory. recall: where memory is asked for what the window does not hold."""

    session: Text | None = None
    history: Literal["whole", "stored"] = "whole"
    keep: bool = True
    recall: Recall = "session"


class Generation(Lenient):
    """What chat and completions have in common."""

    model: Text | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    seed: Annotated[Whole, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: (
        Annotated[Text, Field(min_length=1)]
        | Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=4)]
        | None
    ) = None
    n: Literal[1] | None = None
    logit_bias: Annotated[dict[str, Number], Field(max_length=0)] | None = None
    user: Text | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings to end before."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> Sampling:
        """How tokens are chosen; OpenAI's default temperature is 1."""
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            seed=self.seed,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
        )


class ChatBody(Generation):
    """/v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[Literal["none", "auto"] | None, BeforeValidator(_not_forced)] = None
    response_format: Annotated[ResponseFormat | None, BeforeValidator(_only_text)] = None
    store: bool | None = None
    session: Text | None = None
    memory: MemoryField | None = None

    @model_validator(mode="after")
    def _logprobs_go_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs: true")
        return self

    @property
    def recall(self) -> Recall:
        """Where memory is asked."""
        return MemoryField().recall if self.memory is None else self.memory.recall

    @property
    def n_likeliest(self) -> int | None:
        """How many of the likeliest tokens are told beside each; None for no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None


TokenRow = Annotated[list[Whole], Field(min_length=1)]


class CompletionBody(Generation):
    """/v1/completions."""

    prompt: Text | TokenRow | Annotated[list[Text], Field(min_length=1, max_length=1)]
    echo: bool = False
    best_of: Literal[1] | None = None
    suffix: None = None
    logprobs: Annotated[Whole, Field(ge=0, le=5)] | None = None


class EmbeddingBody(Lenient):
    """/v1/embeddings."""

    model: Text | None = None
    input: (
        Annotated[Text, Field(min_length=1)]
        | TokenRow
        | Annotated[list[Annotated[Text, Field(min_length=1)]], Field(min_length=1, max_length=2048)]
        | Annotated[list[TokenRow], Field(min_length=1, max_length=2048)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Whole | None = None
