"""How many threads PyTorch is told to use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv.errors import InputError
from livingkv.threads import usable_cores, use_threads


def system(folder: Path, cores: dict[int, tuple[int, int]], quota: str | None) -> tuple[Path, Path]:
    for processor, (package, core) in cores.items():
        place = folder / f"cpu{processor}" / "topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{package}\n")
        (place / "core_id").write_text(f"{core}\n")
    if quota is not None:
        (folder / "cpu.max").write_text(quota)
    return folder, folder / "cpu.max"


TWO_SOCKETS = {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1), 4: (0, 0), 5: (0, 1), 6: (1, 0), 7: (1, 1)}


@pytest.mark.parametrize(
    ("processors", "quota", "expected"),
    [
        (range(8), None, 4),  # two threads a core
        (range(8), "max 100000\n", 4),
        (range(8), "250000 100000\n", 2),
        (range(8), "50000 100000\n", 1),
        ([0, 4], None, 1),
        ([1, 2, 40], None, 3),  # one that the system tells nothing of
    ],
)
def test_affinity_and_quota(tmp_path: Path, processors: list[int], quota: str | None, expected: int) -> None:
    assert usable_cores(set(processors), *system(tmp_path, TWO_SOCKETS, quota)) == expected


def test_what_is_asked_for_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    use_threads({"LIVINGKV_THREADS": "3", "OMP_NUM_THREADS": "5"})
    use_threads({"OMP_NUM_THREADS": "5"})
    use_threads({"LIVINGKV_THREADS": "7"})
    assert told == [3]
    for wrong in ("", "0", "-1", "two", "1e3", "99999", "9" * 5000):
        with pytest.raises(InputError, match="LIVINGKV_THREADS"):
            use_threads({"LIVINGKV_THREADS": wrong})
