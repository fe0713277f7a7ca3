"""Reading, spilling, restoring and recall on one GPU, a Qwen2.5-7B-Instruct-1M shape with random weights.

    python experiments/030_gpu_ingest/run.py [--only limit,prefill,ingest,restore,plain,syncs] [--lengths 32768,131072]
    python experiments/030_gpu_ingest/run.py --only nf4 --out experiments/030_gpu_ingest/result_nf4.json

Each part is measured on its own and written when it is done; one that fails says why and does not stop the others.

limit: dense bf16 matrix products, the yardstick of the run. prefill: tokens/s behind a full window without a store,
beside plain Hugging Face behind the same window. plain: Hugging Face reading everything with full attention, measured
to `--plain-tokens`, beyond summed up from blocks timed behind caches of several lengths. ingest: Memory.ingest of each
length, durable, with peak device memory. restore: opening a store and answering with one token, mode resume and kv,
page cache warm and dropped. start: the same from the start of a process, with --model. syncs: what of a pass waits for
the device, and its kernels. nf4: the same shape in 4 bits held to 7 GiB. `--shape tiny` tries the script on a CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module
sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import GIB, Bench  # noqa: E402
from networks import random_network  # noqa: E402
from reading import limit_part, plain_part, prefill_part, syncs_part  # noqa: E402
from storing import ingest_part, nf4_part, restore_part, start_part  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.model_loading import load_tokenizer  # noqa: E402
from livingkv.models import LoadedModel, from_network, load_model  # noqa: E402
from tests.tiny import tiny_tokenizer  # noqa: E402

HERE = Path(__file__).resolve().parent

PARTS = {
    "limit": limit_part,
    "prefill": prefill_part,
    "syncs": syncs_part,
    "plain": plain_part,
    "ingest": ingest_part,
    "restore": restore_part,
    "start": start_part,
}


def loaded(shape: str, model: str | None, device: torch.device, *, nf4: bool, tokenizer: str | None) -> LoadedModel:
    """The real model of a folder, or random weights in a shape."""
    if model is not None:
        return load_model(model, device=device)
    words = load_tokenizer(Path(tokenizer)) if tokenizer else tiny_tokenizer()
    network = random_network(shape, device, nf4=nf4)
    return from_network(network, words, name=f"random-{shape}", quantization="4bit" if nf4 else "none")


def main(
    shape: Annotated[str, typer.Option(help="7b or tiny.")] = "7b",
    model: Annotated[str | None, typer.Option(help="A model's folder instead of random weights.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="A folder whose tokenizer random weights get.")] = None,
    only: Annotated[str, typer.Option(help="Parts, with commas.")] = "limit,prefill,syncs,plain,ingest,restore",
    lengths: Annotated[str, typer.Option(help="Tokens of the stores.")] = "32768,131072",
    plain_tokens: Annotated[int, typer.Option(help="Longer ones are summed up from blocks.")] = 131072,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    folder: Annotated[Path | None, typer.Option(help="Where the stores go; kept.")] = None,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = HERE / "result.json",
) -> None:
    """Run the parts and write the raw result after each."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    nf4 = only == "nf4"
    if nf4 and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(
            7 * GIB / torch.cuda.get_device_properties(device).total_memory, device
        )
    result: dict[str, Any] = {"circumstances": circumstances(), "n_threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as name:
        started = time.perf_counter()
        made = loaded(shape, model, device, nf4=nf4, tokenizer=tokenizer)
        result |= {"model": made.name, "model_seconds": time.perf_counter() - started}
        sizes = [int(each) for each in lengths.split(",")]
        place = None if model is None else Path(model)
        bench = Bench(made, device, sizes, plain_tokens, repeats, folder or Path(name), result, place)
        for part in only.split(","):
            work = nf4_part if part == "nf4" else PARTS[part]
            started = time.perf_counter()
            try:
                result[part] = work(bench)
            except Exception:  # the other parts go on; what happened is in the result
                result[part] = {"error": traceback.format_exc()[-3000:]}
            result[part]["part_seconds"] = time.perf_counter() - started
            write_json(out, result)
            print(part, round(result[part]["part_seconds"], 1), "s", result[part].get("error", ""), flush=True)


if __name__ == "__main__":
    typer.run(main)
