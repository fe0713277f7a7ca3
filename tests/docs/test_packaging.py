"""What pyproject.toml installs is the whole package: every folder with modules, every other file that git has there."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.docs.modules import PACKAGE, ROOT, files
from tests.docs.pages import read

SETUPTOOLS = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]


def test_every_package_is_installed() -> None:
    folders = {path.parent.relative_to(ROOT) for path in files().values()}
    assert SETUPTOOLS["packages"] == sorted(".".join(folder.parts) for folder in folders)


def test_every_other_file_is_installed() -> None:
    patterns = {Path(*package.split(".")): names for package, names in SETUPTOOLS["package-data"].items()}
    installed = {path for folder, names in patterns.items() for name in names for path in (ROOT / folder).glob(name)}
    others = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert sorted(others - installed) == []
