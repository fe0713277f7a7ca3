"""The probe: what this machine has and how fast it is, measured in under a minute, for `livingkv plan --here`.

What cannot be measured says why; the rest goes on. Knows what is to be measured; how is in the other probe_* modules.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from livingkv.errors import InputError
from livingkv.json_fields import FieldError, Fields
from livingkv.planner.inputs import MEASURABLE
from livingkv.planner.laws import laws
from livingkv.planner.probe_machine import cores, free_disk_bytes, memory_bytes
from livingkv.planner.units import Amount
from livingkv.regular_files import read_regular

VERSION = 1
FILE = "probe.json"
_MOST_BYTES = 1 << 20
_SECONDS = 1.5
"""For each figure of processor and device; drives get less for each size and depth."""


@dataclass(frozen=True, slots=True)
class Measured:
    """value: None where it could not be measured; then `why`."""

    value: float | None
    unit: str
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """parts: by symbol, and some more by name. drive: by size and depth of reads."""

    made: str
    folder: str
    device: str | None
    parts: Mapping[str, Measured]
    drive: tuple[Mapping[str, float], ...]

    @property
    def symbols(self) -> dict[str, Amount]:
        """What the laws can use."""
        found = self.parts.items()
        return {
            name: Amount(one.value, one.unit) for name, one in found if name in MEASURABLE and one.value is not None
        }

    def to_json(self) -> dict[str, Any]:
        """As it is saved."""
        return {"version": VERSION, **asdict(self), "drive": list(self.drive)}


def probe(folder: Path, *, seconds: float | None = None, show: Callable[[str], None] = lambda _: None) -> Probe:
    """Measure. folder: on the drive that is meant. Blocks for about half a minute, and needs half a GiB of
    memory and of disk. show: is told what is measured next."""
    seconds = _SECONDS if seconds is None else seconds
    parts: dict[str, Measured] = {"cores": Measured(cores(), "core")}
    parts |= _sizes(folder)
    drive = _drive(folder, seconds, parts, show)
    name = _computing(seconds, parts, show)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return Probe(made, str(folder), name, parts, tuple(drive))


def save(found: Probe, cache: Path) -> Path:
    """Keep it as the last one, all or nothing. Raises InputError where the folder cannot be written."""
    path = cache / FILE
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{FILE}.{os.getpid()}")
        temporary.write_text(json.dumps(found.to_json(), indent=1) + "\n", "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            "LIVINGKV_CACHE", cache, f"a folder that can be written is needed ({error.strerror})"
        ) from error
    return path


def last_probe(cache: Path) -> dict[str, Amount]:
    """The symbols of the last one that was saved. Raises InputError where there is none that can be read."""
    path, symbols = cache / FILE, laws().symbols
    try:
        fields = Fields.read(read_regular(path, _MOST_BYTES))
        fields.integer("version", lo=VERSION, hi=VERSION)
        parts, found = fields.fields("parts"), {}
        for name in parts.names & set(MEASURABLE):
            one = parts.fields(name)
            if one.has("value"):
                value = one.value("value")
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise FieldError(f"{name} is no number")
                found[name] = symbols[name].checked(Amount(float(value), one.text("unit")))
        return found
    except FileNotFoundError as error:
        raise InputError("--here", "nothing", "measure this machine first: livingkv probe --save") from error
    except (OSError, FieldError, InputError, OverflowError) as error:
        raise InputError("--here", path, f"it cannot be used ({error}): livingkv probe --save makes it anew") from error


def _sizes(folder: Path) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    try:
        total, free = memory_bytes()
        found |= {"ram": Measured(float(total), "byte"), "ram_free": Measured(float(free), "byte")}
    except (OSError, KeyError, ValueError) as error:
        found["ram"] = Measured(None, "byte", f"the system does not tell ({error})")
    try:
        found["disk"] = Measured(float(free_disk_bytes(folder)), "byte")
    except OSError as error:
        found["disk"] = Measured(None, "byte", f"{folder}: {error.strerror}")
    return found


def _drive(
    folder: Path, seconds: float, parts: dict[str, Measured], show: Callable[[str], None]
) -> list[Mapping[str, float]]:
    from livingkv.planner.probe_drive import drive_speeds

    show("drive")
    try:
        found = drive_speeds(folder, seconds / 4)
    except InputError as error:
        parts["bw_disk"] = Measured(None, "byte/second", str(error))
        return []
    parts["bw_disk"] = Measured(max(one.bytes_per_s for one in found), "byte/second")
    return [{**asdict(one), "bytes_per_s": one.bytes_per_s} for one in found]


def _computing(seconds: float, parts: dict[str, Measured], show: Callable[[str], None]) -> str | None:
    """The device's name; None without one."""
    import torch

    from livingkv.planner import probe_compute as compute

    def part(name: str, unit: str, work: Callable[[], float]) -> None:
        show(name)
        try:
            parts[name] = Measured(work(), unit)
        except RuntimeError as error:  # torch's for no memory, no kernel of that type, a device that fails
            parts[name] = Measured(None, unit, " ".join(str(error).split())[:200])

    free = parts["ram_free"].value if "ram_free" in parts else None
    cpu, read = torch.device("cpu"), compute.buffer_bytes(int(free or 0))
    part("bw_ram", "byte/second", lambda: compute.read_rate(read, 2 * seconds, cpu))
    for name in ("float32", "bfloat16"):
        dtype = getattr(torch, name)
        part(f"flops_cpu_{name}", "flop/second", partial(compute.matrix_rate, 2048, dtype, seconds, cpu))
    parts["flops_cpu"] = _faster(parts, "flops_cpu")
    if not torch.cuda.is_available():
        parts["vram"] = Measured(0.0, "byte", "there is no CUDA device")
        for name, unit in (("bw_vram", "byte/second"), ("bw_pcie", "byte/second"), ("flops_device", "flop/second")):
            parts[name] = Measured(None, unit, "there is no CUDA device")
        return None
    device = torch.device("cuda", torch.cuda.current_device())
    parts["vram"] = Measured(float(torch.cuda.get_device_properties(device).total_memory), "byte")
    part("bw_vram", "byte/second", lambda: compute.read_rate(compute.device_buffer_bytes(device), seconds, device))
    part("bw_pcie", "byte/second", lambda: compute.copy_rate(seconds, device))
    for name in ("float32", "bfloat16"):
        dtype = getattr(torch, name)
        part(f"flops_device_{name}", "flop/second", partial(compute.matrix_rate, 8192, dtype, seconds, device))
    parts["flops_device"] = _faster(parts, "flops_device")
    return str(torch.cuda.get_device_name(device))


def _faster(parts: Mapping[str, Measured], name: str) -> Measured:
    """The better of both types."""
    both = [parts[f"{name}_{kind}"] for kind in ("float32", "bfloat16")]
    return max(both, key=lambda one: one.value or 0.0)
