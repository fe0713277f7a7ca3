"""What the web page is made of: nothing inline, nothing from elsewhere, vendored files unchanged, all in the wheel."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import livingkv
from tests.server.serving import Served

PACKAGE = Path(livingkv.__file__).parent / "server" / "page"
ROOT = PACKAGE.parent.parent.parent
TEMPLATES = sorted((PACKAGE / "templates").iterdir())
STATIC = sorted(path for path in (PACKAGE / "static").rglob("*") if path.is_file())
OWN = [path for path in STATIC if path.parent.name != "vendor"]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_scripts_styles_or_handlers_of_its_own(template: Path) -> None:
    text = template.read_text()
    assert not re.search(r"<style|\sstyle=|javascript:|\|\s*safe\b|autoescape|<base\b", text)
    assert not re.search(r"\son[a-z]+\s*=|hx-on|hx-vals=['\"]js:|hx-trigger=['\"][^'\"]*\[", text), "these need eval"
    assert not re.search(r"=\{\{", text), "values of attributes are quoted"
    for script in re.findall(r"<script[^>]*>[^<]*", text):
        assert re.fullmatch(r"<script src=\"\{\{ static\('[\w./]+'\) \}\}\"( defer)?>", script), script


@pytest.mark.parametrize("path", [*TEMPLATES, *OWN], ids=lambda path: path.name)
def test_nothing_is_fetched_from_elsewhere(path: Path) -> None:
    found = re.findall(r"https?://[^\s\"')]+", path.read_text())
    assert set(found) <= {"http://www.w3.org/2000/svg"}


def test_own_scripts_evaluate_nothing() -> None:
    for path in (PACKAGE / "static").glob("*.js"):
        assert not re.search(r"\beval\(|new Function|document\.write|setTimeout\(['\"]", path.read_text()), path


def test_vendored_files_are_those_that_are_written_down() -> None:
    folder = PACKAGE / "static" / "vendor"
    rows = re.findall(r"^\| (\S+) \|.*\| ([0-9a-f]{64}) \|$", (folder / "VENDORED.md").read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == {path.name for path in folder.iterdir()} - {"VENDORED.md"}
    for name, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_package_data_names_every_file_of_the_page() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "livingkv.server.page" in tools["packages"]
    named = {path for pattern in tools["package-data"]["livingkv.server.page"] for path in PACKAGE.glob(pattern)}
    assert set(TEMPLATES) | set(STATIC) <= named


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_page(tmp_path: Path) -> None:
    copy, wheels = tmp_path / "livingkv", tmp_path / "wheels"
    shutil.copytree(PACKAGE.parent.parent, copy / "livingkv", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(wheels), str(copy)]
    if find_spec("setuptools") is not None:
        build.append("--no-build-isolation")
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"livingkv/server/page/{path.relative_to(PACKAGE).as_posix()}" for path in [*TEMPLATES, *STATIC]}
    assert wanted <= names


@pytest.mark.parametrize("path", [*STATIC], ids=lambda path: path.name)
def test_static_files_are_served_with_their_type(served: Served, path: Path) -> None:
    answer = served.client.get(f"/static/{path.relative_to(PACKAGE / 'static').as_posix()}")
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert answer.status_code == 200 and answer.content == path.read_bytes()
    assert answer.headers["content-type"].startswith(kinds.get(path.suffix, "text/"))
    assert answer.headers["x-content-type-options"] == "nosniff" and "set-cookie" not in answer.headers


@pytest.mark.parametrize("name", ["../visit.py", "..%2fvisit.py", "%2e%2e/access.py", "vendor", "nothing.js", ""])
def test_nothing_else_is_served(served: Served, name: str) -> None:
    assert served.client.get(f"/static/{name}").status_code == 404
