"""Fitted matrices of 4 bits, kept in the cache folder: to fit them takes a process longer than to read them.

Knows files, checksums and in which order this machine's kernel takes codes; knows no network and no fit. A file that
is not there, is damaged or cannot be written costs time and never a right product: the matrix is fitted then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from threading import get_ident

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from livingkv.packed.matrices import GROUP, Int4Codes, Int4Matrix
from livingkv.regular_files import read_regular

LOG = logging.getLogger("livingkv.packed")

FORMAT = 1
"""Of the files, and of what a fit of a name is: another one where either changes."""

LEAST_WEIGHTS = 1 << 18
"""Smaller matrices are fitted sooner than a file is found."""

_PROBED = 256


class KeptMatrices:
    """The matrices of one model. Says in one line of the log that a file is damaged, and in one that none can be
    written. Any number of processes may use the same folder: files come whole, and are never changed.

    cache: livingkv's cache folder; None: nothing is kept. model: its digest and name.
    """

    def __init__(self, cache: Path | None, model_digest: str, model_name: str) -> None:
        self._name = model_name
        self._folder: Path | None = None
        self._writes = True
        self._told: set[str] = set()
        if cache is not None:
            key = json.dumps([FORMAT, model_digest, layout_digest()]).encode()
            self._folder = cache / "packed" / hashlib.sha256(key).hexdigest()[:32]

    def matrix(self, name: str, weight: Tensor, fit: Callable[[Tensor], Int4Codes | None]) -> Int4Matrix | None:
        """The kept matrix of that name, which stands for the weight and the fit; else the fit's, kept from now on. None
        where the fit has none."""
        file = None if self._folder is None or weight.numel() < LEAST_WEIGHTS else self._folder / f"{name}.safetensors"
        kept = None if file is None else self._read(file, weight)
        if kept is not None:
            return kept
        codes = fit(weight)
        if codes is None:
            return None
        made = codes.matrix()
        if file is not None and self._writes:
            self._keep(file, made)
        return made

    def _read(self, file: Path, weight: Tensor) -> Int4Matrix | None:
        try:
            raw = read_regular(file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._tell("read", f"{file} cannot be read ({error.strerror}): its weights are fitted anew")
            return None
        try:
            found = load(raw)
        except SafetensorError:
            found = {}
        if found.keys() == {"packed", "table", "checksum"}:
            made = Int4Matrix(found["packed"].clone(), found["table"].clone())
            if _fits(made, weight) and torch.equal(found["checksum"], _checksum(made)):
                return made
        self._tell("read", f"{file} is damaged: its weights are fitted anew")
        return None

    def _keep(self, file: Path, made: Int4Matrix) -> None:
        draft = file.with_suffix(f".{os.getpid()}-{get_ident()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(save({"packed": made.packed, "table": made.table, "checksum": _checksum(made)}))
            draft.replace(file)
        except OSError as error:
            self._writes = False  # the others could not be written either
            self._tell("write", f"{file.parent} cannot be written ({error.strerror}): each start fits its weights")
            _remove(draft)

    def _tell(self, what: str, line: str) -> None:
        if what not in self._told:
            self._told.add(what)
            LOG.warning("%s: %s", self._name, line)


def layout_digest() -> str:
    """Digest of how this machine and this PyTorch lay codes out for their kernel: with another one kept matrices mean
    nothing."""
    codes = (torch.arange(_PROBED * _PROBED) * 7919 % 251 % 16).view(_PROBED, _PROBED)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 2)
    about = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    return xxhash.xxh3_128_hexdigest(about.encode() + packed.numpy().tobytes())


def _fits(made: Int4Matrix, weight: Tensor) -> bool:
    """Whether the sizes are those that the kernel reads for such a weight."""
    n_outputs, n_inputs = weight.shape
    sizes = (tuple(made.packed.shape), made.packed.dtype, tuple(made.table.shape), made.table.dtype)
    return sizes == ((n_outputs, n_inputs // 2), torch.uint8, (n_inputs // GROUP, n_outputs, 2), torch.bfloat16)


def _checksum(made: Int4Matrix) -> Tensor:
    """xxh3-128 of both tensors, uint8 [16]."""
    digest = xxhash.xxh3_128()
    for part in (made.packed, made.table):
        digest.update(part.view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def _remove(draft: Path) -> None:
    try:
        draft.unlink(missing_ok=True)
    except OSError as error:
        LOG.info("%s stays behind (%s)", draft, error.strerror)
