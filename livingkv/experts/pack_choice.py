"""Which pack of its experts a model folder is read from: the one that is named, the one in the folder, or none.

Knows where packs are looked for; refuses to know what is in them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal

from livingkv.errors import PackOfAnother
from livingkv.experts.index import ExpertIndex
from livingkv.experts.pack_index import open_pack

LOG = logging.getLogger("livingkv.experts")

PACK = "experts.pack"
"""In a model's folder: the pack that is found without being named."""

AskedPack = Path | Literal["auto", "off"]
"""A pack's folder; auto: the one in the model's folder, if it is one of the files that are there; off: none."""


def asked_pack(given: str | Path) -> AskedPack:
    """What was given, in words or as a path; a folder called auto or off is `./auto`."""
    return "auto" if given == "auto" else "off" if given == "off" else Path(given)


def default_pack(folder: Path) -> Path:
    """Where the pack of a model folder lies unless somebody says otherwise."""
    return folder / PACK


def indexed(asked: AskedPack, folder: Path, source: ExpertIndex, *, for_device: bool) -> ExpertIndex:
    """The index to read experts by: over a pack, or `source`, that of the folder itself.

    Raises PackError where a pack is damaged, and PackOfAnother where one that was named is of other files; one that was
    not named is then left, which is said.
    """
    if isinstance(asked, Path):
        return open_pack(asked, source, for_device=for_device)
    if asked == "off" or not os.path.lexists(default_pack(folder)):
        return source
    try:
        found = open_pack(default_pack(folder), source, for_device=for_device)
    except PackOfAnother as error:
        LOG.warning("%s; until then experts are read from the model's own files", error)
        return source
    LOG.info("experts are read from their pack, %s", default_pack(folder))
    return found
