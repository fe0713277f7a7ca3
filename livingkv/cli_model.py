"""The model verbs: fetch a model, describe a model.

Knows what a loaded model says of itself; knows nothing of where models come from.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from livingkv.models import LoadedModel

model_app = typer.Typer(invoke_without_command=True)

Name = Annotated[
    str | None,
    typer.Argument(metavar="M", help="A folder, GGUF file, hub id or short name.", show_default="the default model"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.")]


@model_app.callback()
def model(context: typer.Context) -> None:
    """Fetch a model, or say what it is."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@model_app.command()
def fetch(name: Name = None, as_json: Json = False, debug: Debug = False) -> None:
    """Fetch a model and make it ready, so that later starts take seconds and need no network.

    \b
    Examples:
      livingkv model fetch
      livingkv model fetch Qwen/Qwen2.5-7B-Instruct-1M
    """
    from livingkv.cli_progress import phase_bar
    from livingkv.model_sources import find_model

    with phase_bar() as show:
        found = find_model(name, show)
    print_model({"name": found.name, "folder": str(found.folder)}, as_json=as_json)


@model_app.command()
def info(name: Name = None, as_json: Json = False, debug: Debug = False) -> None:
    """Say what a model is and what a token of it costs. Loads the model.

    \b
    Examples:
      livingkv model info
      livingkv model info ./my-model --json
    """
    from livingkv.cli_progress import phase_bar
    from livingkv.models import load_model

    with phase_bar() as show:
        loaded = load_model(name, progress=show)
    print_model(describe(loaded), as_json=as_json)


def print_model(facts: dict[str, Any], *, as_json: bool) -> None:
    """Prints the facts as lines or as one JSON document."""
    from livingkv.cli_render import print_facts, print_json

    if as_json:
        print_json(facts)
    else:
        print_facts({key.replace("_", " "): value for key, value in facts.items() if value is not None})


def describe(loaded: LoadedModel) -> dict[str, Any]:
    """The facts of a model that a store depends on, and the bytes that a token of its KV takes."""
    shape = loaded.shape
    return {
        "name": loaded.name,
        "layers": shape.n_layers,
        "heads": shape.n_heads,
        "kv_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "native_context": shape.native_context,
        "kv_bytes_per_token_16_bit": 2 * 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": str(loaded.device),
        "quantization": loaded.quantization,
        "dual_chunk": None if loaded.dual_chunk is None else asdict(loaded.dual_chunk),
        "model_digest": loaded.model_digest,
        "tokenizer_digest": loaded.tokenizer_digest,
    }
