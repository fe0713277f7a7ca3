"""What several verbs share: their options, and how they open a memory.

Knows the words of the command line; nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from livingkv.memory import Memory
    from livingkv.settings import Settings

Codec = Literal["int8", "lossless"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_size(text: str) -> int:
    """Bytes from a count such as 500M, 2G or 1.5T, in binary units. Raises BadParameter."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no size: give bytes, or a number with K, M, G or T, such as 2G")
    return int(float(found[1]) * (1 << _UNITS[found[2].lower()]))


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
    int | None,
    typer.Option(
        metavar="SIZE",
        parser=parse_size,
        help="The store may take this much, such as 2G: the KV of the coldest pages goes first, text stays.",
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


def open_memory(
    store: str, *, model: str | None = None, settings: Settings | None = None, read_only: bool = False, create: bool
) -> Memory:
    """Opens the store; where `create` says so, one that is missing is made by the first write."""
    from livingkv.memory import Memory

    return Memory.open(store, model=model, settings=settings, read_only=read_only, create=create)


def chosen_settings(
    *,
    codec: Codec | None = None,
    disk_budget: int | None = None,
    ram_budget: int | None = None,
    embedder: str | None = None,
) -> Settings | None:
    """The settings that the options ask for; None for no wish."""
    from livingkv.settings import Settings

    wishes: dict[str, object] = {"codec": codec, "disk_budget_bytes": disk_budget, "ram_budget_bytes": ram_budget}
    wishes["embedder"] = embedder
    wishes = {name: value for name, value in wishes.items() if value is not None}
    return Settings.from_dict(wishes) if wishes else None
