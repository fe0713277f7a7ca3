"""The experts verbs about routes: trace records what tokens choose, simulate what caches would hold of it.

Knows the words of the command line; the work is in experts/. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from livingkv.cli_experts import Folder, Ram, Text, experts_app, prompt_of, streamed
from livingkv.cli_options import Debug, Json, PackFolder

__all__ = ["experts_app"]

File = Annotated[Path, typer.Argument(metavar="FILE", help="The record of routes.", show_default=False)]
_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)


@experts_app.command()
def trace(
    folder: Folder,
    file: File,
    ram_gb: Ram = None,
    pack: PackFolder = None,
    tokens: Annotated[int, typer.Option(min=1, max=1 << 16, metavar="N", help="Tokens to generate.")] = 128,
    text: Text = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record which experts the tokens of a prompt and of a reply choose. The file holds numbers, no text.

    \b
    Examples:
      livingkv experts trace ./Qwen3-30B-A3B routes.bin --text letter.txt --ram-gb 8
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_facts, print_json
    from livingkv.errors import InputError
    from livingkv.experts.route_trace import RouteRecorder
    from livingkv.experts.token_speed import token_speed

    with waiting("recording"), streamed(folder, ram_gb, pack) as model:
        ids = prompt_of(model, text)
        try:
            recorder = RouteRecorder(file, tuple(layer.n_experts for layer in model.index.layers))
        except OSError as error:
            raise InputError("FILE", file, f"a new file is needed there ({error.strerror})") from error
        with recorder:
            model.stream.on_asked = recorder.record
            speed = token_speed(model, tokens, ids)
            n_passes = model.counts().n_passes
    found = {"file": str(file), "passes": n_passes, "prompt_tokens": speed.prompt_tokens, "bytes": file.stat().st_size}
    if as_json:
        print_json(found)
    else:
        print_facts({name.replace("_", " "): value for name, value in found.items()})


@experts_app.command()
def simulate(
    folder: Folder,
    file: File,
    ram_gb: Annotated[
        list[float] | None,
        typer.Option("--ram-gb", metavar="N", help="A budget, in 10^9 bytes; may be repeated.", show_default=False),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what RAM of several sizes would have held of recorded routes, by the rules that there are and the optimum.

    Left out, the sizes are shares of all experts, from 1/32 to 1/2. No model
    runs.

    \b
    Examples:
      livingkv experts simulate ./Qwen3-30B-A3B routes.bin --ram-gb 4 --ram-gb 8
    """
    from livingkv.cli_render import print_json, size
    from livingkv.errors import InputError
    from livingkv.experts.describing import plan_of_folder
    from livingkv.experts.route_trace import read_trace
    from livingkv.experts.simulation import simulate as simulated

    index = plan_of_folder(folder).index
    try:
        routes = read_trace(file)
    except OSError as error:
        raise InputError("FILE", file, f"a record of routes is needed ({error.strerror})") from error
    if routes.n_experts != tuple(layer.n_experts for layer in index.layers):
        raise InputError("FILE", file, f"routes of the model in {folder} are needed: these are of another one")
    n_all = sum(routes.n_experts)
    asked = [int(each * 1e9) // index.row_bytes for each in ram_gb or ()] or [int(n_all * share) for share in _SHARES]
    sizes = sorted({min(n_all, max(1, n_rows)) for n_rows in asked})
    rows = simulated(routes, sizes, [index.expert_bytes(layer) for layer in range(len(index.layers))])
    if as_json:
        print_json(
            [{**asdict(row), "hit_share": row.hit_share, "ram_bytes": row.n_rows * index.row_bytes} for row in rows]
        )
        return
    for row in rows:
        held = size(row.n_rows * index.row_bytes)
        print(f"{held:>10}  {row.rule:<13}  {row.hit_share:6.1%} held, {size(row.read_bytes)} read")
