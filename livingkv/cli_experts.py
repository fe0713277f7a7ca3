"""The experts verbs: what streaming a mixture-of-experts model costs, before and after it is tried.

Knows the words of the command line; the work is in experts/. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from livingkv.backend import experts_pack, experts_ram_bytes
from livingkv.cli_options import Debug, Json, PackFolder

if TYPE_CHECKING:
    from livingkv.experts.drive_speed import DriveSpeed
    from livingkv.experts.loading import StreamedModel

experts_app = typer.Typer(help="Models larger than memory: index, bench, pack, trace, simulate.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The model's folder, with its safetensors.")]
Ram = Annotated[
    float | None,
    typer.Option(
        "--ram-gb",
        metavar="N",
        help="Experts may take this much memory, in 10^9 bytes; left out: half of what is free.",
        show_default=False,
    ),
]

Text = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Its first 1,024 tokens are the prompt; left out: random.", show_default=False),
]
_MOST_PROMPT = 1024
DRIVE_SECONDS = 0.25
"""For each size and depth of reads."""


@experts_app.command("index")
def show_index(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
    """Say what streaming a model would cost. Reads headers only.

    \b
    Examples:
      livingkv experts index ./Qwen3-30B-A3B
    """
    from livingkv.cli_render import print_facts, print_json, size
    from livingkv.experts.describing import described

    found = described(folder)
    if as_json:
        print_json(found)
        return
    shown = {}
    for name, value in found.items():
        words: object = "none" if value is None else value
        if name.endswith("_bytes"):
            words = size(value)
        elif name.endswith("_share"):
            words = f"{value:.1%}"
        shown[name.replace("_", " ").replace("bytes", "size")] = words
    print_facts(shown)


@experts_app.command()
def bench(
    folder: Folder,
    ram_gb: Ram = None,
    tokens: Annotated[int, typer.Option(min=1, max=1 << 16, metavar="N", help="Tokens to generate.")] = 32,
    text: Text = None,
    pack: PackFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the drive, then tokens, then what share of the drive's limit they reach.

    Reads of several sizes, several at once, past the page cache: the fastest
    is the limit. Then tokens are generated with experts streamed from there.
    Nothing is written.

    \b
    Examples:
      livingkv experts bench ./Qwen3-30B-A3B --ram-gb 8
      livingkv experts bench ./Qwen3-30B-A3B --ram-gb 8 --tokens 128 --json
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_json
    from livingkv.experts.token_speed import drive_speeds

    with waiting("measuring"), streamed(folder, ram_gb, pack) as model:
        speeds = drive_speeds(model.index.checkpoint, seconds_each=DRIVE_SECONDS)
        measured = _tokens(model, tokens, prompt_of(model, text), max(speed.bytes_per_s for speed in speeds))
    found = {"drive": [_row(speed) for speed in speeds], **measured}
    if as_json:
        print_json(found)
    else:
        _print(found)


@experts_app.command("pack")
def make_pack(
    folder: Folder,
    pack: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PACK]", help="The new folder; left out: experts.pack in the model's.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Copy the experts into blocks of their own, so that each is one read with a checksum. The model stays as it is.

    It pays where index says so. In the model's folder it is found by whatever
    streams the model. Broken off, the same command goes on.

    \b
    Examples:
      livingkv experts pack ./Qwen3-30B-A3B
      livingkv experts pack ./Qwen3-30B-A3B qwen.pack
      livingkv experts bench ./Qwen3-30B-A3B --pack qwen.pack
    """
    from livingkv.cli_progress import byte_bar
    from livingkv.cli_render import print_facts, print_json, size
    from livingkv.experts.describing import plan_of_folder
    from livingkv.experts.pack_choice import default_pack
    from livingkv.experts.packing import pack as make

    with byte_bar(f"packing {folder.name}") as show:
        made = make(plan_of_folder(folder).index, default_pack(folder) if pack is None else pack, show)
    found = {"path": str(made.path), "experts": made.n_experts, "checked": made.n_checked, "bytes": made.size_bytes}
    if as_json:
        print_json(found)
    else:
        print_facts({**found, "bytes": size(made.size_bytes)})


def streamed(folder: Path, ram_gb: float | None, pack: str | None = None) -> StreamedModel:
    """The model, on CUDA where there is some. Blocks; raises as `load_streamed`."""
    import torch

    from livingkv.experts.describing import require_folder
    from livingkv.experts.loading import load_streamed

    require_folder(folder)
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ram_bytes = experts_ram_bytes("experts", ram_gb if ram_gb is not None else free_bytes / 2e9)
    assert ram_bytes is not None, "the backend is experts"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return load_streamed(folder, ram_bytes=ram_bytes, pack=experts_pack("experts", pack), device=device)


def prompt_of(model: StreamedModel, text: Path | None) -> list[int]:
    """The first token ids of a text file; none for no file. Raises SourceError or InputError."""
    if text is None:
        return []
    from livingkv.errors import InputError
    from livingkv.sources import read_source

    if model.tokenizer is None:
        raise InputError("text", text, "a model with a tokenizer is needed: leave it out")
    words = read_source(str(text), max_line_bytes=1 << 20).decode()
    return list(model.tokenizer.encode(words, add_special_tokens=False)[:_MOST_PROMPT])


def _tokens(model: StreamedModel, n_tokens: int, prompt: list[int], bytes_per_s: float) -> dict[str, Any]:
    """The speed of tokens beside the drive's."""
    from livingkv.experts.token_speed import eta, token_speed

    speed = token_speed(model, n_tokens, prompt)
    bytes_per_token = speed.needed_bytes / speed.n_tokens
    return {
        "ram_bytes": model.arena.size_bytes,
        "tokens": speed.n_tokens,
        "tokens_per_s": speed.tokens_per_s,
        "bytes_per_token": bytes_per_token,
        "wasted_bytes_per_token": (speed.n_bytes - speed.needed_bytes) / speed.n_tokens,
        "hit_rate": speed.hit_rate,
        "waited_share": speed.waited_s / speed.seconds,
        "drive_bytes_per_s": bytes_per_s,
        "limit_tokens_per_s": bytes_per_s / bytes_per_token if bytes_per_token else None,
        "eta": eta(speed.needed_bytes, bytes_per_s, speed.seconds),
        "prompt_tokens": speed.prompt_tokens,
        "prompt_s": speed.prompt_s,
    }


def _row(speed: DriveSpeed) -> dict[str, Any]:
    return {"read_bytes": speed.read_bytes, "depth": speed.depth, "bytes_per_s": speed.bytes_per_s}


def _print(found: dict[str, Any]) -> None:
    from livingkv.cli_render import print_facts, size

    for row in found["drive"]:
        print(f"{size(row['read_bytes']):>10}, {row['depth']:>2} at once: {row['bytes_per_s'] / 1e9:6.2f} GB/s")
    limit, reached = found["limit_tokens_per_s"], found["eta"]
    print_facts(
        {
            "RAM for experts": size(found["ram_bytes"]),
            "prompt": f"{found['prompt_tokens']} tokens in {found['prompt_s']:.2f} s",
            "generated": f"{found['tokens']} tokens, {found['tokens_per_s']:.2f} a second",
            "read for each": size(round(found["bytes_per_token"])),
            "read in vain": size(round(found["wasted_bytes_per_token"])),
            "held in RAM": f"{found['hit_rate']:.1%} of the experts that were needed",
            "waited": f"{found['waited_share']:.1%} of the time",
            "the drive alone": "nothing was read" if limit is None else f"{limit:.2f} tokens a second",
            "eta": "unknown" if reached is None else f"{reached:.3f}, the share of that limit which was reached",
        }
    )
