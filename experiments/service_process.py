"""`livingkv serve` as a process of its own, for experiments: its log is a file, its memory what the kernel counts.

Knows the command line and /proc; knows no route. Whoever starts one ends it, by a signal of their choice.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_SERVED = re.compile(r"^livingkv: .* is served on (http://\S+)/v1$", re.MULTILINE)
_START_S = 300.0
_STOP_S = 20.0
_KB_FIELDS = {"rss": "VmRSS", "anonymous": "RssAnon", "swap": "VmSwap", "peak": "VmHWM"}


class Memory(NamedTuple):
    """Bytes of a process: resident in all, of that not backed by a file, swapped out, and the most that was ever
    resident. Pages of the catalog's map are resident and backed by a file: the kernel takes them when it wants."""

    rss: int
    anonymous: int
    swap: int
    peak: int


class ServiceProcess:
    """One that runs and is ready. url: without the trailing /v1."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, ready_s: float) -> None:
        self.url = url
        self.ready_s = ready_s
        self._process = process

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def memory(self) -> Memory:
        """What it takes now. Raises FileNotFoundError when it has ended."""
        lines = Path(f"/proc/{self.pid}/status").read_text("utf-8").splitlines()
        told = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
        return Memory(**{name: 1024 * int(told.get(field, ["0"])[0]) for name, field in _KB_FIELDS.items()})

    def cpu_s(self) -> float:
        """Processor time that it took so far, of all its threads. Raises FileNotFoundError when it has ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(_STOP_S)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(_STOP_S)

    @property
    def has_ended(self) -> bool:
        """True when there is no process any more."""
        return self._process.poll() is not None


@contextmanager
def service(
    folder: Path, model: str | None, log: Path, options: Sequence[str] = (), *, threads: int = 1
) -> Iterator[ServiceProcess]:
    """Serve the stores in `folder` on a free port of this machine, ready; killed when the block ends, if it still runs.

    model: a spec; None for the default. log: gets what it tells, added to what is there. Raises RuntimeError where it
    ends before it is ready.
    """
    started = time.monotonic()
    named = [] if model is None else ["--model", model]
    argv = [sys.executable, "-m", "livingkv", "serve", str(folder), *named, "--port", "0", *options]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    with log.open("ab") as out:
        before = log.stat().st_size
        with subprocess.Popen(argv, stdout=out, stderr=out, env=env, cwd=log.parent) as process:
            try:
                url = _url(process, log, before, started + _START_S)
                yield ServiceProcess(process, url, time.monotonic() - started)
            finally:
                if process.poll() is None:
                    process.kill()


def _url(process: subprocess.Popen[bytes], log: Path, before: int, deadline_s: float) -> str:
    """Where it is served, once it says so."""
    while time.monotonic() < deadline_s:
        with log.open("rb") as told:
            told.seek(before)
            text = told.read().decode("utf-8", "replace")
        if match := _SERVED.search(text):
            return match[1]
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with {process.returncode}: {text[-500:]}")
        time.sleep(0.05)
    raise RuntimeError(f"the service was not ready within {_START_S:.0f} s")


def tiny_model_folder(folder: Path) -> Path:
    """The tests' tiny random Qwen2 as a model folder, made where it is not there yet. Imports torch."""
    from tests.tiny import tiny_network, tiny_tokenizer

    if not (folder / "config.json").exists():
        tiny_network("qwen2").save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    return folder
