"""Two stores of 1 GB quota, each filled with 3 GB: does every bound hold, and is everything else whole?

    python experiments/007_quota/run.py [--folder /tmp/livingkv-quota]

Two processes write at the same time, a store each: 104 MB of a session that is pinned, then pages of the default
model's size (405,520 bytes) until 3 GB were written. At 90% of the quota each process kills itself; another goes on.
After each commit, and after each commit of the index, the folder is counted as `du` does it. A thread of each process
reads meanwhile. Then every byte that must be there is compared, sentences whose KV was dropped are asked for, and
10,000 requests go through a RAM tier of 256 MiB. The folder is made, needs about 3 GB, and is removed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, write_json  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
WORKER = Path(__file__).with_name("worker.py")
QUOTA_BYTES = 10**9
SEGMENT_BYTES = 1 << 28


def both(role: str, stores: list[Path], *more: str, killed: bool = False) -> list[dict[str, Any]]:
    """A process for each store, at the same time; what they print. Raises RuntimeError if one fails."""
    commands = [[sys.executable, str(WORKER), role, str(path), str(seed), *more] for seed, path in enumerate(stores)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    results = []
    for process in running:
        output, _ = process.communicate()
        if process.returncode != (-9 if killed else 0):
            raise RuntimeError(f"{role} ended with {process.returncode}")
        results.append(json.loads(output))
    return results


def bounds(store: dict[str, Any]) -> dict[str, Any]:
    """The bounds of the issue, each with what was measured."""
    rest, whole, ram = store["rest"], store["verify"], store["read"]
    restart, full = rest["at_open"], store["full_restart"]
    pinned, main = whole["pinned"], whole["main"]
    return {
        "peak_used_over_quota_bytes": rest["peak_used_bytes"] - QUOTA_BYTES,
        "never_over_by_more_than_a_segment": rest["peak_used_bytes"] <= QUOTA_BYTES + SEGMENT_BYTES,
        "restart_reports_share": restart["reported_bytes"] / restart["budget_bytes"],
        "full_restart_reports_share": full["at_open"]["reported_bytes"] / full["at_open"]["budget_bytes"],
        "full_restart_first_commit_drops_pages": full["pages_dropped_by_first_commit"],
        "pinned_is_whole": pinned["n_right"] == pinned["n_pages"] and pinned["n_missing"] == 0,
        "kept_pages_are_right": main["n_right"] == main["n_pages"] - main["n_missing"],
        "text_and_ids_are_whole": all(each["text_is_whole"] and each["token_ids_are_whole"] for each in (pinned, main)),
        "index_found_first": f"{whole['index']['found_first']}/{whole['index']['asked']}",
        "check_is_clean": whole["check_problems"] == [],
        "ram_peak_over_cap": ram["peak_over_cap"],
        "worst_read_beside_commits_s": rest["reads_meanwhile"]["worst_s"],
    }


def main(
    folder: Annotated[Path, typer.Option(help="Made and removed.")] = Path("/tmp/livingkv-quota"),
    written: Annotated[int, typer.Option(help="Bytes of pages written to each store before it is full.")] = 3 * 10**9,
) -> None:
    """Run all parts and write result.json."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists already")
    folder.mkdir(parents=True)
    stores = [folder / "first", folder / "second"]
    try:
        result: dict[str, Any] = {"circumstances": circumstances(), "quota_bytes": QUOTA_BYTES}
        parts = {"to_90_percent": both("fill", stores, str(written), "0.9", killed=True)}
        parts["rest"] = both("fill", stores, str(written))
        parts["full_restart"] = both("fill", stores, str(written + SEGMENT_BYTES))
        parts["verify"] = both("verify", stores)
        parts["read"] = both("read", stores)
        result["stores"] = [{name: values[number] for name, values in parts.items()} for number in range(2)]
        result["bounds"] = [bounds(store) for store in result["stores"]]
        write_json(RESULT, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for each in result["bounds"]:
        print(json.dumps(each, indent=1))


if __name__ == "__main__":
    typer.run(main)
