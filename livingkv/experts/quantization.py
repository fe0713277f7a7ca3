"""What a config says of quantized weights, and what the names on disk then mean: which tensors belong to one matrix.

Four schemes are known; whatever else a config asks for is refused before a weight is read. Activations are never
quantized here: their scales are left out. Knows configs and names; refuses to know values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from livingkv.errors import UnsupportedModel
from livingkv.experts.codings import CODES, GLOBAL_DIVISOR, GLOBAL_SCALE, SCALES

_FP8 = {"_scale_inv": ("", SCALES), ".scale": (".weight", SCALES)}
_MXFP4 = {"_blocks": ("", CODES), "_scales": ("", SCALES)}
_MODELOPT = {".weight_scale": (".weight", SCALES), ".weight_scale_2": (".weight", GLOBAL_SCALE)}
_COMPRESSED = {
    ".weight_packed": (".weight", CODES),
    ".weight_scale": (".weight", SCALES),
    ".weight_global_scale": (".weight", GLOBAL_DIVISOR),
}
_LEFT_OUT = (".input_scale", ".input_global_scale", ".activation_scale", ".k_scale", ".v_scale")


class StoredAs(NamedTuple):
    """What a stored tensor is: part `role` of the matrix that transformers knows as `name`; "" is all of it."""

    name: str
    role: str


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a checkpoint names codes and scales. endings: of a name on disk, to the matrix's own ending and the role."""

    name: str
    endings: Mapping[str, tuple[str, str]]

    def sorted(self, names: Iterable[str]) -> dict[str, StoredAs]:
        """What each name is; those of nothing that is computed with are left out."""
        all_names = frozenset(names)
        found = {}
        for name in all_names:
            companion = self._companion(name, all_names)
            if companion is not None:
                found[name] = companion
            elif not (self.endings and name.endswith(_LEFT_OUT)):
                found[name] = StoredAs(name, "")
        coded = {stored.name for stored in found.values() if stored.role}
        return {
            name: StoredAs(stored.name, CODES) if not stored.role and stored.name in coded else stored
            for name, stored in found.items()
        }

    def _companion(self, name: str, names: frozenset[str]) -> StoredAs | None:
        for ending, (whole, role) in self.endings.items():
            if name.endswith(ending):
                base = name.removesuffix(ending) + whole
                # another tensor may end like this, too: `q_norm.scale` is one where there is no `q_norm.weight`
                if role == CODES or base in names or self._codes_of(base) in names:
                    return StoredAs(base, role)
        return None

    def _codes_of(self, base: str) -> str | None:
        for ending, (whole, role) in self.endings.items():
            if role == CODES:
                return base.removesuffix(whole) + ending
        return None


PLAIN = Scheme("plain", {})


def scheme_of(settings: Any) -> Scheme:
    """The scheme of a config's quantization_config, a mapping or None. Raises UnsupportedModel for all others."""
    if settings is None:
        return PLAIN
    values: dict[str, Any] = dict(settings if isinstance(settings, Mapping) else settings.to_dict())
    method = str(values.get("quant_method"))
    if method == "fp8":
        return _fp8(values)
    if method == "mxfp4":
        return Scheme("mxfp4", _MXFP4)
    if method in ("modelopt", "modelopt_fp4"):
        inner = values.get("quantization")
        algorithm = (inner if isinstance(inner, Mapping) else values).get("quant_algo")
        return _only("modelopt's quant_algo", algorithm, "NVFP4", Scheme("nvfp4 of modelopt", _MODELOPT))
    if method == "compressed-tensors":
        return _compressed(values)
    raise UnsupportedModel(f"quant_method {method}: streaming reads fp8, mxfp4, modelopt and compressed-tensors")


def _fp8(values: Mapping[str, Any]) -> Scheme:
    scheme = Scheme("fp8", _FP8)
    for field, default, allowed in (
        ("weight_block_size", None, ([128, 128],)),
        ("activation_scheme", "dynamic", ("dynamic",)),
        ("fmt", "e4m3", ("e4m3",)),
    ):
        value = values.get(field, default)
        value = list(value) if isinstance(value, tuple) else value
        if value not in allowed:
            raise UnsupportedModel(f"quant_method fp8 with {field} {value}: streaming reads {allowed[0]} only")
    return scheme


def _compressed(values: Mapping[str, Any]) -> Scheme:
    scheme = Scheme("nvfp4 of compressed-tensors", _COMPRESSED)
    groups = values.get("config_groups")
    formats = {values.get("format")}
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(group, Mapping) and group.get("format") is not None:
            formats = formats - {"mixed-precision"} | {group["format"]}
    for one in sorted(map(str, formats)):
        _only("compressed-tensors' format", one, "nvfp4-pack-quantized", scheme)
    return scheme


def _only(what: str, value: object, allowed: str, scheme: Scheme) -> Scheme:
    if value != allowed:
        raise UnsupportedModel(f"{what} {value}: streaming reads {allowed} only")
    return scheme
