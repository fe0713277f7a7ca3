"""Results of the RULER experiment that several processes made side by side, as one.

    python experiments/008_ruler/merge.py OUT.json PART.json PART.json ...

All parts must have one plan, model and commit. An answer that stands in several parts is taken from the first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import write_json  # noqa: E402
from experiments.ruler.parts import merged  # noqa: E402
from experiments.ruler.report import means, print_report  # noqa: E402


def main(
    out: Annotated[Path, typer.Argument(help="The whole result.")],
    parts: Annotated[list[Path], typer.Argument(help="What the processes wrote.")],
) -> None:
    """Put results together and print the tables."""
    try:
        whole = merged([json.loads(part.read_text("utf-8")) for part in parts])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    write_json(out, whole | {"means": means(whole)})
    print_report(whole)


if __name__ == "__main__":
    typer.run(main)
