"""The modules of livingkv and what they import, read from their source without importing anything."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "livingkv"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module. at_load: it is imported when the importing module is, not inside a function or for types."""

    name: str
    at_load: bool
    for_types: bool

    @property
    def top(self) -> str:
        """The first part of the name: "torch" of "torch.nn"."""
        return self.name.partition(".")[0]


@cache
def files() -> dict[str, Path]:
    """Every module's dotted name and file."""
    return {_dotted(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Everything that a module imports, wherever in its source. `from package import module` counts as the module."""
    path = files()[module]
    found: list[Import] = []
    _collect(ast.parse(path.read_text("utf-8")), at_load=True, for_types=False, found=found)
    return tuple(found)


def relative(module: str) -> str:
    """A module's file relative to the package, as ARCHITECTURE.md names it."""
    return files()[module].relative_to(PACKAGE).as_posix()


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _collect(node: ast.AST, *, at_load: bool, for_types: bool, found: list[Import]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found += [Import(alias.name, at_load, for_types) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0 and child.module, "imports are absolute"
            found += [Import(_source(child.module, alias.name), at_load, for_types) for alias in child.names]
        elif isinstance(child, ast.If) and _asks_for_types(child.test):
            _collect(ast.Module(child.body, []), at_load=False, for_types=True, found=found)
            _collect(ast.Module(child.orelse, []), at_load=at_load, for_types=for_types, found=found)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            _collect(child, at_load=at_load and not inside, for_types=for_types, found=found)


def _source(module: str, name: str) -> str:
    whole = f"{module}.{name}"
    return whole if whole in files() else module


def _asks_for_types(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
