"""`livingkv serve` as a process, with a file, variables and flags, and its log as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.server.serving import CHAT, talk
from tests.server.serving_process import CODE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_file_variables_and_flags_are_in_force_and_the_log_is_json(tmp_path: Path, tiny_folder: Path) -> None:
    file = tmp_path / "livingkv.toml"
    file.write_text(
        f'folder = "{tmp_path / "stores"}"\nmodel = "nowhere"\nport = 1\nlog_format = "json"\nmax_sessions = 1\n'
    )
    variables = {"LIVINGKV_MODEL": str(tiny_folder), "LIVINGKV_SERVE_PORT": "2", "LIVINGKV_SERVE_CONFIG": str(file)}
    argv = [sys.executable, "-c", CODE, "serve", "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment) as made:
        try:
            assert made.stderr is not None
            ready = next(line for line in made.stderr if line.startswith("livingkv: "))
            with httpx.Client(base_url=ready.split()[-1].removesuffix("/v1"), timeout=60) as client:
                headers = {"X-Request-Id": "first"}
                body = {"messages": talk("Hello there"), "max_tokens": 4, "temperature": 0}
                assert client.post(CHAT, json=body, headers=headers).status_code == 200
                assert client.post(CHAT, json=body | {"messages": talk("Another")}).status_code == 507
            made.send_signal(signal.SIGTERM)
            lines = [json.loads(line) for line in made.stderr]
            assert made.wait(10) == 0
        finally:
            made.kill()
    requests = [line for line in lines if line["message"] == "request"]
    assert [(line["route"], line["status"]) for line in requests] == [(CHAT, 200), (CHAT, 507)]
    assert requests[0]["request_id"] == "first" and requests[1]["request_id"] != "first"
    assert (tmp_path / "stores" / "default").is_dir()
