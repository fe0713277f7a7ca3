"""One process of run.py: a baseline on the same files, a few tokens. Prints one JSON object.

    python offloaded.py accelerate FOLDER SCRATCH [--n-tokens 2] [--device cuda]     accelerate's disk offload
    python offloaded.py airllm FOLDER SCRATCH [--n-tokens 2] [--device cuda]         AirLLM

Imports nothing of livingkv: AirLLM may live in an environment of its own, with an older transformers. Before each
token the files are dropped from the page cache, so that every token reads what a machine with little memory would read.
SCRATCH takes what the baseline writes: as many bytes as the model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # an experiment is a script, not an installed module

from experiments.page_cache import drop_from_cache


def bytes_read() -> tuple[int, int]:
    """What this process has read so far: from the drive (page faults included), and through read calls."""
    values = dict(line.split(": ") for line in Path("/proc/self/io").read_text("ascii").splitlines())
    return int(values["read_bytes"]), int(values["rchar"])


def accelerate(folder: Path, scratch: Path, device: str) -> Callable[[torch.Tensor], Any]:
    """All layers on disk, the rest in memory, or on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    layers = AutoConfig.from_pretrained(folder).num_hidden_layers
    rest = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    places: dict[str, Any] = dict.fromkeys(rest, 0 if device == "cuda" else device) | {
        f"model.layers.{at}": "disk" for at in range(layers)
    }
    network = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map=places, offload_folder=str(scratch), experts_implementation="eager"
    )
    return lambda ids: network(ids.to(device), use_cache=False).logits


def airllm(folder: Path, scratch: Path, device: str) -> Callable[[torch.Tensor], Any]:
    """A layer at a time, as AirLLM's own loader decides; it reads ahead on a device only."""
    from airllm import AutoModel  # type: ignore[import-not-found]

    network = AutoModel.from_pretrained(
        str(folder),
        device="cuda:0" if device == "cuda" else device,
        dtype=torch.bfloat16,
        layer_shards_saving_path=str(scratch),
        prefetching=device == "cuda",
    )
    return lambda ids: network(ids.to(device), use_cache=False)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=("accelerate", "airllm"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--n-tokens", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    began = time.perf_counter()
    made = accelerate if options.which == "accelerate" else airllm
    forward = made(options.folder, options.scratch, options.device)
    load_s = time.perf_counter() - began
    random = torch.Generator().manual_seed(0)
    seconds, n_bytes, n_called = [], [], []
    with torch.inference_mode():
        for _ in range(options.n_tokens):
            drop_from_cache(options.folder, options.scratch)
            before, called = bytes_read()
            began = time.perf_counter()
            forward(torch.randint(2, 300, (1, 1), generator=random))
            if options.device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
            n_bytes.append(bytes_read()[0] - before)
            n_called.append(bytes_read()[1] - called)
    document = {
        "which": options.which,
        "device": options.device,
        "device_peak_bytes": torch.cuda.max_memory_allocated() if options.device == "cuda" else 0,
        "load_s": load_s,
        "token_s": seconds,
        "tokens_per_s": len(seconds) / sum(seconds),
        "drive_bytes_per_token": sum(n_bytes) / len(n_bytes),
        "read_call_bytes_per_token": sum(n_called) / len(n_called),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
