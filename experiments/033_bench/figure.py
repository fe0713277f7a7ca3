"""What every figure of the benchmark shares: its options, the rows that it makes, and the file that it writes.

A figure is a script of its own; `run.py` starts them one after the other. Knows nothing of what is measured.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.side_by_side import Summary, ratios, summary  # noqa: E402
from livingkv.model_sources import find_model  # noqa: E402


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of a figure. scratch: an empty folder of its own that goes when it is done. shrink:
    lengths are divided by it. lengths: instead of a figure's own."""

    quick: bool
    device: str
    model: str | None
    gguf: Path | None
    scratch: Path
    shrink: int = 1
    lengths: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        """Of the model's safetensors."""
        return find_model(self.model, None).folder

    def tokens(self, n: int) -> int:
        """A length, shortened where it is only to be seen that everything runs."""
        return max(1024, n // self.shrink)

    def chosen(self, lengths: Sequence[int]) -> list[int]:
        """The lengths that were asked for, else these."""
        return [self.tokens(n) for n in self.lengths or lengths]

    def either(self, quick: Any, full: Any) -> Any:
        """The first in a quick run."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: ours and its baselines in one unit, from one run.

    figure: a key of targets.py. ratios: by baseline, what the target speaks of. missing: baselines that could not be
    had, with the reason. copied: more than what the model read lies in the store (growing_store.py). facts: more, plain
    JSON.
    """

    figure: str
    condition: str
    unit: str
    ours: Summary
    baselines: dict[str, Summary] = field(default_factory=dict)
    ratios: dict[str, Summary] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    copied: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


def seconds_row(
    figure: str, condition: str, ours: Sequence[float], baselines: Mapping[str, Sequence[float]], **more: Any
) -> Row:
    """Times: a ratio says how many times longer the baseline takes."""
    return Row(
        figure, condition, "s", summary(ours), {name: summary(values) for name, values in baselines.items()},
        {name: ratios(values, ours) for name, values in baselines.items()}, **more,
    )  # fmt: skip


def speed_row(
    figure: str, condition: str, ours: Sequence[float], baselines: Mapping[str, Sequence[float]], **more: Any
) -> Row:
    """Seconds of a token each, told as tokens/s: a ratio says how many times faster ours is."""
    return Row(
        figure, condition, "tokens/s", summary([1 / value for value in ours]),
        {name: summary([1 / value for value in values]) for name, values in baselines.items()},
        {name: ratios(values, ours) for name, values in baselines.items()}, **more,
    )  # fmt: skip


def run_figure(measure: Callable[[Plan], Iterator[Row]]) -> None:
    """Make the figure's script: options in, rows out as JSON. Rows that were made before an error are kept with it."""

    def main(
        out: Annotated[Path, typer.Option(help="Where the rows go, as JSON.")],
        quick: Annotated[bool, typer.Option(help="Shorter texts, fewer rounds.")] = False,
        device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
        model: Annotated[str | None, typer.Option(help="A model spec.")] = None,
        gguf: Annotated[Path | None, typer.Option(help="The same weights for llama.cpp.")] = None,
        scratch: Annotated[Path | None, typer.Option(help="Where stores are made, and removed again.")] = None,
        shrink: Annotated[int, typer.Option(min=1, help="Divides lengths, to see that everything runs.")] = 1,
        lengths: Annotated[str, typer.Option(help="Other lengths, for figures at several: 32768,131072.")] = "",
    ) -> None:
        rows: list[dict[str, Any]] = []
        started = time.perf_counter()
        document = {
            "circumstances": circumstances(),
            "n_threads": torch.get_num_threads(),
            "shrink": shrink,
            "rows": rows,
        }
        with own_folder(scratch) as folder:
            try:
                for row in measure(
                    Plan(
                        quick,
                        device,
                        model,
                        gguf,
                        folder,
                        shrink,
                        tuple(map(int, lengths.split(",") if lengths else ())),
                    )
                ):
                    rows.append(asdict(row))
                    write_json(out, document)
            except Exception as error:  # the edge of a process: recorded, and the exit code says so
                traceback.print_exc()
                document["failed"] = f"{type(error).__name__}: {error}"
        write_json(out, document | {"seconds": time.perf_counter() - started})
        raise SystemExit("failed" in document)

    typer.run(main)


@contextmanager
def own_folder(parent: Path | None) -> Iterator[Path]:
    """A new folder, removed in the end."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
