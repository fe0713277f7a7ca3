"""The model verbs: fetch a model, describe a model.

Knows what a loaded model says of itself; knows nothing of where models come from.
"""

from __future__ import annotations

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
    show_model(name, as_json=as_json)


@model_app.command()
def info(name: Name = None, as_json: Json = False, debug: Debug = False) -> None:
    """Say what a model is and what a token of it costs. Loads the model.

    \b
    Examples:
      livingkv model info
      livingkv model info ./my-model --json
    """
    show_model(name, as_json=as_json)


def show_model(name: str | None, *, as_json: bool) -> None:
    """Loads the model, fetching it where needed, and prints what it says of itself."""
    from livingkv.cli_progress import byte_bar
    from livingkv.cli_render import print_facts, print_json
    from livingkv.models import load_model

    with byte_bar("fetching the model") as show:
        facts = describe(load_model(name, progress=show))
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
        "dual_chunk": loaded.dual_chunk is not None,
        "model_digest": loaded.model_digest,
        "tokenizer_digest": loaded.tokenizer_digest,
    }
