"""The service is killed in the middle of turns, again and again: what it acknowledged is there, once."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from livingkv.memory import Memory
from tests.server.serving import CHAT, said, talk
from tests.server.serving_process import process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

N_SESSIONS, N_KILLS, N_CLIENTS = 50, 4, 8


class Client:
    """Talks in some of the sessions, and knows what was acknowledged: the oracle outside of the store."""

    def __init__(self, sessions: list[str], seed: int) -> None:
        self.said: dict[str, list[str]] = {name: [] for name in sessions}
        self._random = random.Random(seed)
        self._n = 0

    def talk_until_killed(self, url: str) -> None:
        """One turn after the other."""
        with httpx.Client(base_url=url, timeout=60) as client:
            while True:
                name = self._random.choice(sorted(self.said))
                self._n += 1
                text = f"Turn {self._n} of {name}."
                body = {"messages": talk(*self.said[name], text), "session": name, "max_tokens": 4, "temperature": 0}
                try:
                    answer = client.post(CHAT, json=body)
                except httpx.TransportError:
                    return
                if answer.status_code == 200:
                    self.said[name] += [text, said(answer.json())]
                else:
                    assert answer.status_code == 429, answer.text


def killed_once(folder: Path, model: Path, clients: list[Client], after_s: float) -> None:
    """Let all clients talk, and kill the service under them."""
    with process(folder, model, "--context", "100000") as (made, client):
        url = str(client.base_url)
        threads = [threading.Thread(target=each.talk_until_killed, args=(url,)) for each in clients]
        for thread in threads:
            thread.start()
        time.sleep(after_s)
        made.send_signal(signal.SIGKILL)
        assert isinstance(made, subprocess.Popen) and made.wait(10) != 0
        for thread in threads:
            thread.join(60)


def test_every_acknowledged_turn_is_there_and_none_is_doubled(tmp_path: Path, tiny_folder: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    names = [f"session-{n}" for n in range(N_SESSIONS)]
    clients = [Client(names[n::N_CLIENTS], seed + n) for n in range(N_CLIENTS)]
    for number in range(N_KILLS):
        killed_once(tmp_path / "stores", tiny_folder, clients, 1.0 + random.Random(seed + number).random())
    spoken = {name: texts for each in clients for name, texts in each.said.items() if texts}
    assert len(spoken) > N_SESSIONS // 2 and sum(map(len, spoken.values())) > 2 * N_SESSIONS
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        for name, texts in spoken.items():
            stored = memory.text(name).decode()
            assert stored.startswith("".join(texts)), name
        assert memory.check().problems == ()
