"""A service with a tiny model on a real socket, in this process: uvicorn on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import uvicorn
from torch import Tensor

from livingkv.memory import Memory
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel, from_network
from livingkv.runner import Runner
from livingkv.server.app import create_app
from livingkv.server.inference_thread import Phase
from livingkv.server.options import ServerOptions
from livingkv.server.service import Service
from livingkv.settings import Settings
from tests.tiny import tiny_network, tiny_tokenizer

TOOL_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\nTools:' }}{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% for message in messages %}"
    "{% if message.role == 'assistant' and message.tool_calls %}{{ '<|im_start|>assistant' }}"
    "{% if message.content %}{{ '\n' + message.content }}{% endif %}{% for call in message.tool_calls %}"
    """{{ '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}"""
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif message.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML with tools, as the templates of Hermes and Qwen have them."""

CHAT = "/v1/chat/completions"
Json = dict[str, Any]


def tiny_model(name: str = "tiny") -> LoadedModel:
    """A tiny random model whose template knows tools."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TOOL_TEMPLATE
    return from_network(tiny_network("qwen2"), tokenizer, name=name)


@cache
def one_model() -> LoadedModel:
    """A tiny model for all services that need none of their own: they run one after the other."""
    return tiny_model()


@dataclass(frozen=True)
class Served:
    """A service that runs, and a client of it. user: for whom it asks, where a request does not say."""

    service: Service
    client: httpx.Client
    folder: Path
    user: str = ""

    @property
    def url(self) -> str:
        """Where it is."""
        return str(self.client.base_url).rstrip("/")

    def post(self, body: Json, path: str = CHAT, **headers: str) -> httpx.Response:
        """A request; greedy and short unless it says otherwise."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        defaults = {"temperature": 0, "max_tokens": 8, **({"user": self.user} if self.user else {})}
        return self.client.post(path, json={**defaults, **body}, headers=named)

    def stored(self, session: str | None) -> bytes:
        """The text of a session, as another process reads it."""
        with Memory.open(self.folder / "default", read_only=True) as memory:
            return memory.text(f"{self.user}/{session}" if self.user else str(session))

    def chat(self, *texts: str, **fields: Any) -> Json:
        """A turn: what user and assistant said by turns, the user first."""
        answer = self.post({"messages": talk(*texts), **fields})
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def count(self, name: str) -> float:
        """One of the service's counters."""
        value = self.service.counters.registry.get_sample_value(f"livingkv_{name}")
        assert value is not None
        return value


def talk(*texts: str) -> list[Json]:
    """Messages of user and assistant by turns."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


def said(answer: Json) -> str:
    """The text of an answer."""
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: Json) -> int:
    """Tokens of the prompt that were reused."""
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@contextmanager
def serving(folder: Path, model: LoadedModel | ModelChoice | None = None, **options: Any) -> Iterator[Served]:
    """Serve `folder` on a free port until the block ends."""
    settings = options.pop("settings", Settings(block_tokens=64, window_tokens=1024))
    chosen = ServerOptions(folder, port=0, settings=settings, **options)
    service = Service(chosen, model or one_model())
    config = uvicorn.Config(
        create_app(service), port=0, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    service.start()
    thread.start()
    wait_until(lambda: server.started and service.phase is not Phase.STARTING)
    assert service.phase is Phase.READY, service.error
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False) as client:  # no TLS here
            yield Served(service, client, folder)
    finally:
        server.should_exit = True
        thread.join(10)
        assert service.stop(5)


def wait_until(is_so: Any, timeout_s: float = 20.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def scripted(monkeypatch: pytest.MonkeyPatch, *replies: str, spelled: bool = False) -> None:
    """Make the model say these replies, one after the other, then the last again; spelled: a token for each byte."""
    waiting = list(replies)
    backend = tiny_tokenizer().backend_tokenizer

    def ids_of(text: str) -> list[int]:
        parts = list(text) if spelled else [text]
        return [token for part in parts for token in backend.encode(part, add_special_tokens=False).ids]

    def generate(self: Runner, logits: Tensor, state: Any, sampler: Any, max_tokens: int) -> Iterator[int]:
        reply = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        ids = ids_of(reply)[:max_tokens]
        for index, token in enumerate(ids):
            sampler.pick(logits[0, -1])
            yield token
            if index + 1 < len(ids):
                logits = self.logits(torch.tensor([token]), state)

    monkeypatch.setattr(Runner, "generate", generate)


def slowly(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make every forward pass take this much longer."""
    quick = Runner._pass

    def slow(self: Runner, token_ids: Tensor, state: Any) -> Tensor:
        time.sleep(seconds)
        return quick(self, token_ids, state)

    monkeypatch.setattr(Runner, "_pass", slow)
