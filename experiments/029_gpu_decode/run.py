"""Decoding on a GPU: recorded steps beside Hugging Face's, at the shape of Qwen2.5-7B-Instruct-1M with random weights.

    python experiments/029_gpu_decode/run.py [--out FILE] [--parts a,b] [--tiny]

In one process on one device: the bandwidth of its memory, Hugging Face's decoding at the window's length and with whole
caches, as it comes and without cuDNN's attention, livingkv's passes and recorded steps for sessions of two lengths and
for several sessions at once, the time of every kernel, peaks of memory, and 4-bit weights where bitsandbytes is. A part
that fails says so and the others go on; the file is written after each. `compared` sets each length beside the better
of Hugging Face's ways. The part `quick` is the most telling of it in a minute, and is run only when it is named.
--tiny: a dry run in small, also without a GPU.
"""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from ours import decode, session  # noqa: E402
from shape import Scale, loaded, network_of, read_bytes, scale_of  # noqa: E402
from theirs import decode_whole_cache, peak_bytes, reset_peak, wait  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.models import LoadedModel  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
SIZES = (1, 2, 4, 8)


class Lines(logging.Handler):
    """Keeps what livingkv logs of its recordings."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See logging."""
        self.lines.append(record.getMessage())
        print(self.lines[-1], flush=True)


class Bench:
    """The parts of the experiment, on one network."""

    def __init__(self, tiny: bool) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.scale: Scale = scale_of(tiny)
        self.network: Any = network_of(self.scale, self.device)
        self._rotary = self.network.base_model.rotary_emb
        self._model: LoadedModel | None = None
        self._engines: dict[bool, Engine] = {}

    def engine(self, *, chunked: bool = False) -> Engine:
        """Takes the network over: Hugging Face's decoding comes before."""
        if chunked not in self._engines:
            self.let_go()
            if self._model is None:
                self._model = loaded(self.network)
            chunks = self.scale.chunks if chunked else None
            self._engines[chunked] = Engine.of(replace(self._model, dual_chunk=chunks), "int8")
        return self._engines[chunked]

    def let_go(self) -> None:
        """Nothing that was recorded is kept."""
        self._engines.clear()
        self.network.base_model.rotary_emb = self._rotary
        gc.collect()

    def bandwidth(self) -> dict[str, Any]:
        """Bytes a second: of a copy, read and written counted, and of reading for a sum."""
        source = torch.randn(self.scale.copied_bytes // 4, device=self.device)
        target = torch.empty_like(source)
        speeds = {}
        works: dict[str, tuple[int, Callable[[], object]]] = {
            "copy": (2 * source.nbytes, partial(target.copy_, source)),
            "read": (source.nbytes, partial(torch.sum, source)),
        }
        for name, (n_bytes, work) in works.items():
            times = []
            for _ in range(8):
                wait(self.device)
                started = perf_counter()
                work()
                wait(self.device)
                times.append(perf_counter() - started)
            speeds[name] = n_bytes / sorted(times[1:])[3]
        bytes_per_token = read_bytes(self.network)
        limit = max(speeds.values()) / bytes_per_token
        return {"bytes_per_s": speeds, "weight_bytes_per_token": bytes_per_token, "limit_tokens_per_s": limit}

    def huggingface(self, n_steps: int = 48, full: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Its own decoding, at the window's length and with everything in the cache; with cuDNN's attention, which it
        takes by itself, and without."""
        lengths = (self.scale.window + 16, *(self.scale.full if full is None else full))
        return [
            _tried(partial(decode_whole_cache, self.network, self.scale, n, n_steps, cudnn=cudnn))
            for n in lengths
            for cudnn in (True, False)
        ]

    def lengths(self, *, chunked: bool, n_times: int = 2, ways: Sequence[bool] = (False, True)) -> list[dict[str, Any]]:
        """One session, of each length; by passes and recorded. n_times: the spread is to be seen."""
        found = []
        for n_tokens in self.scale.lengths * n_times:
            for records in ways:
                hot = session(self.engine(chunked=chunked), self.scale, n_tokens)
                n_steps = self.scale.n_steps if records else self.scale.n_steps // 2
                taken = decode(self.engine(chunked=chunked), [hot], n_steps, records=records)
                found.append({"n_stored": n_tokens, "recorded": records, **taken})
        return found

    def several(self, sizes: Sequence[int] = SIZES, ways: Sequence[bool] = (True, False)) -> list[dict[str, Any]]:
        """Several sessions at once."""
        engine, found = self.engine(), []
        for size in sizes:
            for records in ways:
                sessions = [session(engine, self.scale, self.scale.lengths[0] + 640 * n) for n in range(size)]
                found.append(
                    {
                        "recorded": records,
                        **decode(engine, sessions, self.scale.n_steps // (2 if records else 4), records=records),
                    }
                )
        return found

    def quick(self) -> dict[str, Any]:
        """What tells most, in a minute."""
        parts: dict[str, Callable[[], Any]] = {
            "bandwidth": self.bandwidth,
            "huggingface": lambda: self.huggingface(24, self.scale.full[-2:]),
            "plain": lambda: self.lengths(chunked=False, n_times=1, ways=(True,)),
            "several": lambda: self.several((1, 8), (True,)),
        }
        found: dict[str, Any] = {"part_s": {}}
        for name, part in parts.items():
            began = perf_counter()
            found[name] = _tried(part)
            found["part_s"][name] = perf_counter() - began
        return found | {"compared": compared(found)}

    def kernels(self) -> list[dict[str, Any]]:
        """The time of every kernel of a recorded step, for one row and for eight."""
        from torch.profiler import ProfilerActivity, profile

        engine, found = self.engine(), []
        for size in (1, 8):
            sessions = [session(engine, self.scale, self.scale.lengths[0]) for _ in range(size)]
            decode(engine, sessions, 2, records=True)
            decoder = engine.runner._shared.decoder
            recording = decoder.recording(size) if decoder is not None else None
            if recording is None:
                continue
            with profile(activities=[ProfilerActivity.CUDA]) as told:
                for _ in range(4):
                    recording.replay()
                wait(self.device)
            events = sorted(told.key_averages(), key=lambda event: -event.device_time_total)[:16]
            rows = [{"name": e.key[:90], "calls": e.count / 4, "ms": e.device_time_total / 4000} for e in events]
            found.append({"n_rows": size, "way": recording.way, "kernels": rows})
        return found

    def tiles(self) -> list[dict[str, Any]]:
        """Other sizes of our own products: milliseconds of a recorded step, for one row and for eight."""
        from livingkv.decoding import choosing
        from livingkv.decoding.decoder import Decoder
        from livingkv.decoding.on_device import KernelOps, Tiles
        from livingkv.decoding.parts import parts_of
        from livingkv.decoding.recording import CudaRecorder

        runner, found = self.engine().runner, []
        one = [
            Tiles(outs=o, block=b, stages=s)
            for o, b, s in (
                (2, 512, 1),
                (4, 512, 1),
                (4, 1024, 1),
                (8, 512, 1),
                (8, 256, 1),
                (16, 512, 1),
                (8, 512, 3),
                (4, 512, 4),
            )
        ]
        many = [
            Tiles(rows_outs=o, rows_block=b, rows_stages=s)
            for o, b, s in (
                (16, 128, 4),
                (16, 256, 3),
                (16, 256, 5),
                (32, 128, 4),
                (32, 256, 3),
                (32, 64, 6),
                (64, 128, 3),
            )
        ]
        parts = parts_of(self.network)
        for size, every in ((1, one), (8, many)):
            for tiles in every:
                way = str(tiles), choosing._plain(runner.model, parts, KernelOps(tiles))
                decoder = Decoder(runner.model, runner._probe, CudaRecorder(self.device), [[way]])
                with torch.inference_mode():
                    made = decoder.recording(size)
                found.append({"n_rows": size, "tiles": str(tiles), "ms": made and 1000 * made.seconds})
        return found

    def four_bit(self) -> dict[str, Any]:
        """NF4 weights: memory with the window, beside the 7 GiB that it may take, and speed. The packing itself is not
        counted."""
        self.let_go()
        for layer in self.network.base_model.layers:
            for block in (layer.self_attn, layer.mlp):
                for name, child in list(block.named_children()):
                    if type(child) is torch.nn.Linear:
                        setattr(block, name, _packed(child, self.scale.dtype))
                    del child
        reset_peak(self.device)
        weights = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None
        engine = self.engine()
        hot = engine.hot_window(_settings(self.scale), 16)
        engine.runner.read(torch.zeros(self.scale.window, dtype=torch.int64, device=self.device), hot)
        found = {"weight_bytes": weights, "limit_bytes": 7 << 30, "peak_bytes_reading": peak_bytes(self.device)}
        del hot
        for name, records in (("recorded", True), ("passes", False)):
            n_steps = self.scale.n_steps // 2
            alone = [session(engine, self.scale, self.scale.lengths[0])]
            found[name] = _tried(partial(decode, engine, alone, n_steps, records=records))
            del alone
        return found


def _settings(scale: Scale) -> Any:
    from livingkv.settings import Settings

    return Settings(window_tokens=scale.window)


def _packed(linear: Any, dtype: torch.dtype) -> Any:
    """As transformers packs a checkpoint's weight."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    how = {"quant_type": "nf4", "compress_statistics": True}
    sizes = linear.in_features, linear.out_features
    packed = Linear4bit(*sizes, bias=False, compute_dtype=dtype, device="meta", **how)
    packed.weight = Params4bit(linear.weight.data, requires_grad=False, **how).to(linear.weight.device)
    packed.bias = linear.bias
    return packed.eval()


def compared(found: dict[str, Any]) -> dict[str, Any] | None:
    """Medians beside the better of Hugging Face's ways, at the window's length and for whole caches; eight rows beside
    one. None where a part of it is missing."""
    try:
        theirs: dict[int, float] = {}
        for row in found["huggingface"]:
            if "error" not in row:
                theirs[row["n_cached"]] = max(theirs.get(row["n_cached"], 0.0), row["tokens_per_s"])
        ours = {
            n: sorted(row["tokens_per_s"] for row in found["plain"] if row["recorded"] and row["n_stored"] == n)
            for n in {row["n_stored"] for row in found["plain"]}
        }
        several = {row["n_rows"]: row["tokens_per_s"] for row in found["several"] if row["recorded"]}
        return {
            "huggingface_tokens_per_s": theirs,
            "recorded_tokens_per_s": {n: speeds[len(speeds) // 2] for n, speeds in ours.items()},
            "times_huggingface": {
                f"{n} stored, {m} cached": speeds[len(speeds) // 2] / speed
                for n, speeds in ours.items()
                for m, speed in theirs.items()
            },
            "share_of_limit": max(max(speeds) for speeds in ours.values()) / found["bandwidth"]["limit_tokens_per_s"],
            "eight_rows_by_one": several[8] / several[1],
        }
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def _tried(part: Callable[[], Any]) -> Any:
    """What the part gives, or what stood against it."""
    try:
        return part()
    except Exception as error:  # the edge of a part: told in the result
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0][:300]}"}


def main(out: Path = RESULT, parts: str = "", tiny: bool = False) -> None:
    """Run the parts, all of them if none is named, and write what they found after each."""
    log = Lines()
    logging.getLogger("livingkv.decoding").addHandler(log)
    logging.getLogger("livingkv.decoding").setLevel(logging.INFO)
    started = perf_counter()
    document: dict[str, Any] = {"circumstances": _tried(circumstances), "tiny": tiny}
    bench = Bench(tiny)
    wait(bench.device)
    document["made_s"] = perf_counter() - started
    every: dict[str, Callable[[], Any]] = {
        "bandwidth": bench.bandwidth,
        "huggingface": bench.huggingface,
        "plain": lambda: bench.lengths(chunked=False),
        "several": bench.several,
        "kernels": bench.kernels,
        "tiles": bench.tiles,
        "dual_chunk": lambda: bench.lengths(chunked=True),
        "four_bit": bench.four_bit,
        "quick": bench.quick,
    }
    if bench.device.type != "cuda":
        del every["tiles"], every["kernels"]
    if find_spec("bitsandbytes") is None:
        del every["four_bit"]
    for name in parts.split(",") if parts else [name for name in every if name != "quick"]:
        began = perf_counter()
        document[name] = _tried(every[name])
        document.setdefault("part_s", {})[name] = perf_counter() - began
        print(f"{name}: {perf_counter() - began:.1f} s", document[name], flush=True)
        write_json(out, document | {"compared": compared(document), "log": log.lines})
        gc.collect()


if __name__ == "__main__":
    typer.run(main)
