"""The rules of layers in ARCHITECTURE.md hold: imports point down, libraries stay where they belong, no torch early."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter

import pytest

from tests.docs.modules import ROOT, files, imports, relative

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
OWN = [module for module in files() if module != "livingkv"]
TORCH_FREE = ("livingkv", "livingkv.store", "livingkv.index", "livingkv.cli", "livingkv.client")


@cache
def layers() -> list[tuple[str, list[str]]]:
    """The table of layers, the highest first: name, and the files and folders in it."""
    table = ARCHITECTURE.partition("## Layers")[2]
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+) \|$", table, re.MULTILINE)
    return [(name.strip(), re.findall(r"`([^`]+)`", cells)) for name, cells in rows]


@cache
def depth(module: str) -> int:
    """In which row of the table a module stands."""
    found = [
        number
        for number, (_, names) in enumerate(layers())
        if any(relative(module) == name or (name.endswith("/") and relative(module).startswith(name)) for name in names)
    ]
    assert len(found) == 1, f"{relative(module)} stands in {len(found)} layers of ARCHITECTURE.md"
    return found[0]


def below(module: str) -> set[str]:
    """The modules of livingkv that are loaded with a module, those of packages on the way included."""
    loaded: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in files() and name not in loaded:
            loaded.add(name)
            waiting += [found.name for found in imports(name) if found.at_load]
            waiting.append(name.rpartition(".")[0])
    return loaded


def test_layers_name_only_what_exists() -> None:
    assert len(layers()) == 8
    named = [name for _, names in layers() for name in names]
    assert [name for name in named if not (ROOT / "livingkv" / name).exists()] == []


def test_imports_point_down() -> None:
    assert len(OWN) > 200
    up = [
        f"{module} imports {found.name}"
        for module in OWN
        for found in imports(module)
        if found.name in files() and found.name != "livingkv" and depth(found.name) < depth(module)
    ]
    assert up == []


def test_imports_run_in_no_circle() -> None:
    graph = {
        module: {found.name for found in imports(module) if found.name in OWN and not found.for_types} for module in OWN
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(OWN)  # raises CycleError, naming the circle


def test_store_and_index_do_not_import_each_other() -> None:
    for one, other in (("livingkv.store", "livingkv.index"), ("livingkv.index", "livingkv.store")):
        crossing = [
            (module, found.name)
            for module in OWN
            if module.startswith(one)
            for found in imports(module)
            if found.name.startswith(other)
        ]
        assert crossing == []


def test_store_index_and_ground_import_no_torch() -> None:
    free = [module for module in OWN if depth(module) >= len(layers()) - 2]
    reached = {(module, found.top, found.at_load) for module in free for found in imports(module)}
    heavy = {(module, at_load) for module, top, at_load in reached if top in ("torch", "transformers")}
    assert heavy <= {("livingkv.index.minilm", False), ("livingkv.index.device_parts", False)}


@pytest.mark.parametrize("module", TORCH_FREE)
def test_nothing_that_is_loaded_early_imports_torch(module: str) -> None:
    heavy = [
        (name, found.name)
        for name in below(module)
        for found in imports(name)
        if found.at_load and found.top in ("torch", "transformers")
    ]
    assert heavy == []


@pytest.mark.slow
def test_importing_livingkv_loads_no_torch() -> None:
    code = f"import sys, {', '.join(TORCH_FREE)}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("library", "where"),
    [
        ("lmdb", r"store/.*"),
        ("tantivy", r"index/.*"),
        ("faiss", r"index/.*"),
        ("typer", r"cli.*\.py"),
        ("rich", r"cli.*\.py"),
        ("fastapi", r"server/.*"),
        ("starlette", r"server/.*"),
        ("uvicorn", r"server/.*"),
        ("pydantic", r"server/.*"),
        ("mcp", r"server/mcp_.*"),
        ("httpx", r"client/.*"),
        ("pint", r"planner/.*"),
        ("simpleeval", r"planner/.*"),
        ("prometheus_client", r"server/.*"),
        ("transformers", r"(model|gguf_).*\.py|runner\.py|index/minilm\.py|planner/config.*|(experts|snapshots)/.*"),
    ],
)
def test_libraries_are_known_to_few(library: str, where: str) -> None:
    users = {relative(module) for module in files() for found in imports(module) if found.top == library}
    assert users and [user for user in sorted(users) if not re.fullmatch(where, user)] == []


def test_nothing_imports_through_the_links() -> None:
    tops = {found.top for module in files() for found in imports(module)}
    assert tops.isdisjoint({"store", "index", "server"})
