"""The hub, with a local server in its place: its cache, its offline mode, refusal before weights, one-line errors."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from transformers import AutoConfig

from livingkv import model_hub
from livingkv.errors import InputError, ModelNotFound, UnsupportedModel
from livingkv.experts.plan import refuse_unstreamable
from livingkv.model_choice import ModelChoice
from livingkv.model_hub import hub_file, hub_folder
from livingkv.model_sources import find_model
from livingkv.models import load_model
from tests.models.test_loading import model_folder
from tests.planner.models import config

REPO = "org/tiny"
COMMIT = "c" * 40


class FakeHub(ThreadingHTTPServer):
    """Serves one folder as a repository. `asked` lists the requests; `failure`, if set, is what any of them gets."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubRequest)
        self.folder = folder
        self.asked: list[str] = []
        self.failure: tuple[int, str] | None = None


class HubRequest(BaseHTTPRequestHandler):
    """The few requests that the hub's client makes for a public model."""

    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        path = self.path.split("?")[0]
        prefix = f"/{REPO}/resolve/"
        files = sorted(file for file in self.server.folder.iterdir() if file.is_file())
        if path == "/":
            self._send(200, b"", {}, with_body)
        elif self.server.failure:
            code, error_code = self.server.failure
            self._send(code, b"{}", {"X-Error-Code": error_code, "X-Error-Message": "no"}, with_body)
        elif path.startswith(prefix):
            file = self.server.folder / path.removeprefix(prefix).split("/", 1)[1]
            if not file.is_file():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
            content = file.read_bytes()
            etag = hashlib.sha256(content).hexdigest()
            self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, with_body)
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            tree = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40} for f in files]
            self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"}, with_body)
        elif path.startswith(f"/api/models/{REPO}"):
            about = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": file.name} for file in files], "tags": []}
            self._send(200, json.dumps(about).encode(), {"Content-Type": "application/json"}, with_body)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, with_body)
        return None

    def _send(self, status: int, content: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with FakeHub(model_folder(tmp_path / "repo")) as server:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_hub_id_is_fetched_once_and_then_needs_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (hub.folder / "pytorch_model.bin").write_bytes(b"pickle")
    (hub.folder / "consolidated.safetensors").write_bytes(b"the same again")
    seen: list[tuple[str, int, int]] = []
    capfd.readouterr()
    found = find_model(REPO, lambda *step: seen.append(step))
    assert found.name == REPO
    assert (found.folder / "model.safetensors").read_bytes() == (hub.folder / "model.safetensors").read_bytes()
    assert not {"pytorch_model.bin", "consolidated.safetensors"} & {file.name for file in found.folder.iterdir()}
    assert {phase for phase, _, _ in seen} == {"fetch"}
    assert max(done for _, done, _ in seen) >= (hub.folder / "model.safetensors").stat().st_size
    asked = len(hub.asked)
    assert load_model(REPO, device="cpu").name == REPO
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_model(REPO).folder == found.folder
    assert len(hub.asked) == asked
    assert capfd.readouterr() == ("", "")


def test_an_unfit_model_is_refused_before_its_weights_are_fetched(hub: FakeHub) -> None:
    AutoConfig.for_model("mamba").save_pretrained(hub.folder)
    with pytest.raises(UnsupportedModel, match="recurrent state"):
        find_model(REPO)
    assert not any("safetensors" in request for request in hub.asked)


def test_what_the_config_tells_is_refused_before_weights_are_fetched(hub: FakeHub) -> None:
    with pytest.raises(UnsupportedModel, match=r"org/tiny: .*no experts, so that it is no mixture"):
        load_model(REPO, device="cpu", experts_ram_bytes=1 << 30)
    with pytest.raises(InputError, match="org/tiny has no dual-chunk sizes in its config"):
        ModelChoice(REPO, dual_chunk=True).load()
    assert not any("safetensors" in request for request in hub.asked)


def test_a_streamed_model_without_plain_kv_is_fetched(hub: FakeHub) -> None:
    AutoConfig.for_model(**config("qwen3_next")).save_pretrained(hub.folder)
    with pytest.raises(UnsupportedModel, match="hybrid"):
        load_model(REPO, device="cpu", experts_ram_bytes=1 << 30)
    assert not any("safetensors" in request for request in hub.asked)
    assert find_model(REPO, check=refuse_unstreamable, streamed=True).name == REPO
    assert any("safetensors" in request for request in hub.asked)


def test_a_repository_without_safetensors_is_named(hub: FakeHub) -> None:
    (hub.folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"org/tiny: the hub has no safetensors weights"):
        find_model(REPO)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ((404, "RepoNotFound"), "no such model on the hub"),
        ((401, "GatedRepo"), "access must be asked for"),
        ((404, "EntryNotFound"), "no such file"),
        ((418, "Teapot"), "could not be fetched"),
    ],
)
def test_errors_of_the_hub_are_one_line(hub: FakeHub, failure: tuple[int, str], message: str) -> None:
    hub.failure = failure
    with pytest.raises(ModelNotFound, match=message) as caught:
        hub_file(REPO, "config.json")
    assert "\n" not in str(caught.value)


def test_offline_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFound, match="not in the local hub cache, and HF_HUB_OFFLINE is set"):
        hub_folder(REPO, lambda folder: None)
    assert hub.asked == []


def test_a_hub_that_cannot_be_reached_is_found_out_soon(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(ModelNotFound, match="cannot be reached; check the network"):
            hub_file(REPO, "config.json")


def test_a_silent_hub_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_hub, "_REACH_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(ModelNotFound, match="cannot be reached"):
            hub_file(REPO, "config.json")
        assert time.monotonic() - started < 3
