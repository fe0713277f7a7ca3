"""What several verbs share: their options, and how they open a memory.

Knows the words of the command line; nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from livingkv.backend import Backend, experts_pack, experts_ram_bytes
from livingkv.sizes import size_of

if TYPE_CHECKING:
    from livingkv.memory import Memory
    from livingkv.model_choice import ModelChoice
    from livingkv.sampling import Sampling
    from livingkv.settings import Settings

Codec = Literal["int8", "lossless"]
WeightsName = Literal["bf16", "fp32", "int8", "int4", "8bit", "4bit"]


def parse_size(text: str) -> int:
    """Bytes from a count such as 500M, 2G or 1.5T, in binary units. Raises BadParameter."""
    try:
        return size_of(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no size: {error}") from error


class DiskLimit(NamedTuple):
    """A disk budget; None for no limit."""

    n_bytes: int | None


def parse_disk_limit(text: str) -> DiskLimit:
    """A size, or the word unlimited. Raises BadParameter."""
    return DiskLimit(None if text.strip().lower() == "unlimited" else parse_size(text))


StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The store: a folder.", show_default=False)]
SessionName = Annotated[str, typer.Argument(metavar="SESSION", help="The session.", show_default=False)]
NewName = Annotated[str, typer.Argument(metavar="NEW", help="The new name.", show_default=False)]
Session = Annotated[str, typer.Option("--session", "-s", metavar="NAME", help="The session.")]
OneSession = Annotated[
    str | None, typer.Option("--session", "-s", metavar="NAME", help="This session only.", show_default=False)
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="M", help="A folder, GGUF file, hub id or short name.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.")]
DiskBudget = Annotated[
    DiskLimit | None,
    typer.Option(
        metavar="SIZE",
        parser=parse_disk_limit,
        help="From now on the store may take this much, such as 2G: the KV of the coldest pages goes first, text "
        "stays. The store keeps it; unlimited lifts it.",
        show_default=False,
    ),
]
EMBEDDERS = "What finds by meaning: tokens, states, minilm, or a sentence-transformers name or folder."
Embedder = Annotated[
    str | None, typer.Option("--embedder", metavar="E", help=f"In a new store. {EMBEDDERS}", show_default=False)
]
RamBudget = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE", parser=parse_size, help="Stored pages may take this much memory.", show_default="256M"
    ),
]

KeyFolder = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        envvar="LIVINGKV_KEY_FOLDER",
        show_envvar=False,
        help="Keys of encrypted sessions are here, outside of the store.",
        show_default=False,
    ),
]
Encrypt = Annotated[
    bool, typer.Option("--encrypt", help="Make a new session encrypted; forget destroys its key.", show_default=False)
]


Weights = Annotated[
    WeightsName | None,
    typer.Option(
        help="How weights are loaded; left out: as in the store, bf16 for a new one. int8, int4: text is read "
        "in bf16, generation on a CPU reads these; left out there: int8.",
        show_default=False,
    ),
]
Dual = Annotated[
    bool | None,
    typer.Option(
        "--dual-chunk/--no-dual-chunk",
        help="The model's dual-chunk positions, or none; left out: as in the store, or as the model has it.",
        show_default=False,
    ),
]
BackendName = Annotated[
    Backend | None,
    typer.Option(
        "--backend",
        help="experts: those of a mixture-of-experts model stay in its files and are read when they are needed.",
        show_default=False,
    ),
]
RamGb = Annotated[
    float | None,
    typer.Option(
        "--ram-gb",
        metavar="N",
        help="Experts may take this much memory, in 10^9 bytes; with the backend experts, which needs it.",
        show_default=False,
    ),
]
PackFolder = Annotated[
    str | None,
    typer.Option(
        "--pack",
        metavar="PACK",
        help="Experts are read from this pack; off: from the model's files; left out: from the pack in its folder.",
        show_default=False,
    ),
]
Temperature = Annotated[float, typer.Option(metavar="T", help="0 always takes the likeliest token.")]
TopP = Annotated[float, typer.Option("--top-p", metavar="P", help="Only from the likeliest tokens with this share.")]
Seed = Annotated[
    int | None,
    typer.Option(min=0, max=(1 << 63) - 1, metavar="N", help="The same choices each time.", show_default=False),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="End before this text; may be repeated.", show_default=False),
]


def chosen_model(
    model: str | None,
    weights: WeightsName | None,
    dual_chunk: bool | None,
    backend: Backend | None = None,
    ram_gb: float | None = None,
    pack: str | None = None,
) -> str | ModelChoice | None:
    """The model that the options ask for; a plain spec where nothing else is asked for. Raises InputError."""
    ram_bytes, place = experts_ram_bytes(backend, ram_gb), experts_pack(backend, pack)
    if weights is None and dual_chunk is None and ram_bytes is None:
        return model
    from livingkv.model_choice import ModelChoice

    return ModelChoice(model, weights, dual_chunk, ram_bytes, place)


def chosen_sampling(temperature: float, top_p: float, seed: int | None) -> Sampling | None:
    """How tokens are to be chosen; None for the likeliest. Raises InputError or BadParameter."""
    if temperature == 0.0:
        if top_p != 1.0 or seed is not None:
            raise typer.BadParameter("--top-p and --seed go with a --temperature above 0")
        return None
    from livingkv.sampling import Sampling

    return Sampling(temperature=temperature, top_p=top_p, seed=seed)


def chosen_stops(stop: list[str] | None) -> tuple[str, ...]:
    """The texts to stop before. Raises BadParameter for one without a character."""
    if "" in (stop or ()):
        raise typer.BadParameter("--stop needs at least one character")
    return tuple(stop or ())


def open_memory(
    store: str,
    *,
    model: str | ModelChoice | None = None,
    settings: Settings | None = None,
    read_only: bool = False,
    create: bool,
) -> Memory:
    """Opens the store; where `create` says so, one that is missing is made by the first write."""
    from livingkv.memory import Memory

    return Memory.open(store, model=model, settings=settings, read_only=read_only, create=create)


def chosen_settings(
    *,
    codec: Codec | None = None,
    disk_budget: DiskLimit | None = None,
    ram_budget: int | None = None,
    key_folder: str | None = None,
    embedder: str | None = None,
) -> Settings | None:
    """The settings that the options ask for; None for no wish."""
    from livingkv.settings import Settings

    limit = None if disk_budget is None else "unlimited" if disk_budget.n_bytes is None else disk_budget.n_bytes
    wishes = {
        "codec": codec,
        "disk_budget_bytes": limit,
        "ram_budget_bytes": ram_budget,
        "key_folder": key_folder,
        "embedder": embedder,
    }
    wishes = {name: value for name, value in wishes.items() if value is not None}
    return Settings.from_dict(wishes) if wishes else None
