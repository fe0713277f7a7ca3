"""Plans held against measurement: bytes of a store and of streamed experts, speeds against their ceilings.

python experiments/034_plan/run.py [--model M] [--work FOLDER] [--tiny] [--out result.json]

Everything in one process, the machine's probe first. A part that fails is recorded with its error, and the others go
on. Bytes must agree within 2%, speeds must stay below what the plan says, also those of experiments/023_experts, with
the drive's speed as it was measured there.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.page_cache import drop_from_cache  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.synthetic_moe import MoeShape, make_checkpoint  # noqa: E402
from livingkv import Memory  # noqa: E402
from livingkv.experts import load_streamed  # noqa: E402
from livingkv.experts.token_speed import token_speed  # noqa: E402
from livingkv.home import Home  # noqa: E402
from livingkv.model_sources import find_model  # noqa: E402
from livingkv.models import LoadedModel, load_model  # noqa: E402
from livingkv.planner.facts import config_facts, model_facts  # noqa: E402
from livingkv.planner.inputs import inputs_of  # noqa: E402
from livingkv.planner.options import amounts_of  # noqa: E402
from livingkv.planner.plan import plan_of  # noqa: E402
from livingkv.planner.probe import Probe, probe  # noqa: E402
from livingkv.planner.units import Amount  # noqa: E402

SMALL = MoeShape(n_layers=4, n_experts=32, top_k=4, hidden=1024, expert_hidden=384, n_heads=8, vocabulary=512)
TINY = MoeShape(n_layers=2, n_experts=8, top_k=2, hidden=64, expert_hidden=32, n_heads=4, n_kv_heads=2, head_dim=16,
                vocabulary=512)  # fmt: skip
WITHIN = 0.02
Row = dict[str, Any]


def main(
    model: Annotated[str | None, typer.Option(help="left out: the default model")] = None,
    work: Annotated[Path | None, typer.Option(help="a folder on a drive; left out: the system's")] = None,
    tiny: Annotated[bool, typer.Option(help="small sizes, to see that it runs")] = False,
    out: Path = ROOT / "experiments" / "034_plan" / "result.json",
) -> None:
    """Measure, compare, write."""
    document: Row = {"circumstances": circumstances(), "within": WITHIN, "rows": [], "errors": {}}
    with tempfile.TemporaryDirectory(dir=work, prefix="034-") as name:
        folder = Path(name)
        here = probe(folder, seconds=0.02 if tiny else 1.5)
        document["probe"] = {key: value for key, value in here.to_json().items() if key != "folder"}
        parts: Mapping[str, Callable[[], Iterator[Row]]] = {
            "store": lambda: of_store(model, folder, here, 3_000 if tiny else 24_000),
            "speeds": lambda: of_speeds(model, here, 4 if tiny else 16),
            "streamed": lambda: of_streamed(folder, here, TINY if tiny else SMALL, 8 if tiny else 32),
            "committed": of_committed,
        }
        for part, rows in parts.items():
            with recorded(document["errors"], part):
                for row in rows():
                    document["rows"].append({"part": part, **row})
                    print(json.dumps(document["rows"][-1]), flush=True)
    document["all_hold"] = not document["errors"] and all(row["holds"] for row in document["rows"])
    write_json(out, document)
    print("all hold" if document["all_hold"] else f"NOT all hold: {document['errors']}")


@contextmanager
def recorded(errors: dict[str, str], part: str) -> Iterator[None]:
    """A part's failure is a result, too."""
    try:
        yield
    except Exception as error:  # the edge of a part: the others go on
        errors[part] = f"{type(error).__name__}: {error}"


def agrees(what: str, predicted: float, measured: float, *, within: float = WITHIN) -> Row:
    """Bytes that must be equal, nearly."""
    off = abs(measured - predicted) / measured
    return {
        "what": what,
        "kind": "bytes",
        "predicted": predicted,
        "measured": measured,
        "off": off,
        "holds": off <= within,
    }


def below(what: str, ceiling: float, measured: float, unit: str = "token/second") -> Row:
    """A speed that must not exceed its ceiling."""
    share = measured / ceiling
    return {"what": what, "kind": unit, "predicted": ceiling, "measured": measured, "share": share, "holds": share <= 1}


def planned(facts: Any, measured: Mapping[str, Amount], **given: float) -> Callable[[str, str], float]:
    """A function from law and unit to the value of the plan."""
    document = plan_of(inputs_of(facts, amounts_of(given), measured))
    rows = {one["law"]: one for one in document["calculations"]}
    return lambda law, unit: Amount(float(rows[law]["value"]), rows[law]["unit"]).to(unit).value


def place(loaded: LoadedModel) -> str:
    """Which laws hold for it."""
    return "device" if loaded.device.type == "cuda" else "cpu"


def wait(loaded: LoadedModel) -> None:
    """Until what was asked of a device is done."""
    if loaded.device.type == "cuda":
        torch.cuda.synchronize()


def of_store(model: str | None, folder: Path, here: Probe, n_bytes: int) -> Iterator[Row]:
    """A real store, made by an ingest, and its restoring from a cold drive."""
    text = "".join(path.read_text("utf-8") for path in (ROOT / "README.md", ROOT / "docs" / "API.md"))[:n_bytes]
    loaded, facts = load_model(model), model_facts(str(find_model(model).folder))
    with Memory.open(folder / "store.lkv", model=loaded) as memory:
        made = memory.ingest("docs", text=text.encode())
    with Memory.open(folder / "store.lkv", read_only=True) as memory:
        stats, tokens = memory.stats(), memory.session("default").n_tokens
    value = planned(facts, here.symbols, context=tokens)
    sealed = value("sealed", "token/user")
    yield {
        **agrees("pages", sealed * value("kv_per_token", "byte/token"), stats.bytes_by_part["pages"]),
        "tokens": tokens,
    }
    yield agrees("the whole store", value("store", "byte"), stats.size_bytes)
    without_kv = stats.size_bytes - stats.bytes_by_part["pages"] - stats.bytes_by_part["tails"]
    yield {
        "what": "text, index and catalog, a token",
        "kind": "byte/token",
        "measured": without_kv / tokens,
        "holds": True,
    }
    stored = sum(path.stat().st_size for path in find_model(model).folder.glob("*.safetensors"))
    yield agrees("weights", value("weights", "byte"), stored)
    ceiling = value(f"prefill_{place(loaded)}", "token/second")
    yield below("ingest", ceiling, made.n_tokens / made.seconds)
    drop_from_cache(folder / "store.lkv")
    home = Home(folder / "store.lkv", loaded, None, read_only=False, create=False)
    try:
        home.ready_to_write()
        session = home.store().session("default")
        began = perf_counter()
        with home.hot_window(session):
            seconds = perf_counter() - began
    finally:
        home.close()
    floor = value("restore_window", "second")
    yield below("windows restored from a cold drive", 1 / floor, 1 / seconds, "1/second")


def of_speeds(model: str | None, here: Probe, n_tokens: int) -> Iterator[Row]:
    """Reading and generating by the plain network, in 16 bits, against this processor's ceilings."""
    loaded, facts = load_model(model, weights="bf16"), model_facts(str(find_model(model).folder))
    network = loaded.network
    ids = torch.randint(0, loaded.shape.vocab_size, (1, 512), generator=torch.Generator().manual_seed(0))
    ids = ids.to(loaded.device)
    with torch.inference_mode():
        network(ids, use_cache=True, logits_to_keep=1)  # the first pass of a device loads its code
        wait(loaded)
        began = perf_counter()
        made = network(ids, use_cache=True, logits_to_keep=1)
        wait(loaded)
        reading = 512 / (perf_counter() - began)
        seconds = []
        for _ in range(n_tokens):
            began = perf_counter()
            made = network(ids[:, :1], past_key_values=made.past_key_values, use_cache=True)
            wait(loaded)
            seconds.append(perf_counter() - began)
    value = planned(facts, here.symbols, context=512)
    yield below("reading 512 tokens", value(f"prefill_{place(loaded)}", "token/second"), reading)
    ceiling = value(f"decode_{place(loaded)}", "token/second")
    yield below("generating, the median token", ceiling, 1 / statistics.median(seconds))
    yield below("generating, the fastest token", ceiling, 1 / min(seconds))


def of_streamed(folder: Path, here: Probe, shape: MoeShape, n_tokens: int) -> Iterator[Row]:
    """A checkpoint with experts that is made on the spot; half of them fit RAM."""
    made = folder / "moe"
    for _ in make_checkpoint(made, shape):
        pass
    facts, stored = model_facts(str(made)), sum(path.stat().st_size for path in made.glob("*.safetensors"))
    value = planned(facts, here.symbols, context=64)
    yield agrees("weights of the checkpoint", value("weights", "byte"), stored)
    yield agrees("all experts", value("experts_all", "byte"), shape.experts_bytes)
    with load_streamed(
        made, ram_bytes=shape.experts_bytes // 2 + (1 << 20), read_ahead="off", device="cpu"
    ) as streamed:
        speed = token_speed(streamed, n_tokens)
        per_token = speed.needed_bytes / speed.n_tokens
    hits = planned(facts, here.symbols, context=64, cache_hit=speed.hit_rate)
    yield {
        **agrees("experts read for a token", hits("experts_missed", "byte/token"), per_token),
        "hits": speed.hit_rate,
    }
    yield below("generating with streamed experts", hits("stream_cpu", "token/second"), speed.tokens_per_s)


def of_committed() -> Iterator[Row]:
    """The rows of experiments/023_experts, with the drive's speed of the same minute."""
    data = json.loads((ROOT / "experiments" / "023_experts" / "result.json").read_text("utf-8"))
    shape = MoeShape(**data["shape"])
    facts = config_facts("synthetic", shape.config())
    value = planned(facts, {}, context=64)
    yield agrees("weights of the checkpoint", value("weights", "byte"), data["checkpoint_bytes"])
    expert = facts.facts["expert_bytes"].amount
    assert expert is not None, "the config says it"
    yield agrees("one expert", expert.value, shape.expert_bytes)
    for number, row in enumerate(data["streamed"]):
        name = f"row {number}: {row['ram_bytes'] / 1e9:.2f} GB of RAM, read ahead {row['read_ahead']}"
        name += ", emulated drive" if row["is_emulated"] else ""
        with_hits = planned(facts, {}, context=64, cache_hit=row["hit_share"])
        yield agrees(f"{name}: experts read", with_hits("experts_missed", "byte/token"), row["missed_bytes_per_token"])
        seconds = with_hits("experts_missed", "byte/token") / row["bytes_per_s"]
        if seconds > 0:
            yield below(f"{name}: tokens", 1 / seconds, row["tokens_per_s"])


if __name__ == "__main__":
    typer.run(main)
