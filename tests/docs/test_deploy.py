"""What deploy/ names is there: flags, variables, settings, metrics, routes, paths; and systemd finds nothing wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from livingkv.server.guard import OPEN_PATHS
from livingkv.server.serving import _LAST_STEP_S as LAST_STEP_S
from livingkv.server.setting_sources import server_options, settings_in_force
from livingkv.server.setting_table import CONFIG_VARIABLE, SETTINGS, setting_called
from tests.docs.modules import ROOT
from tests.docs.pages import blocks, read
from tests.docs.test_readme_words import verbs
from tests.docs.test_serve_page import exported

NAMES = ("README.md", "livingkv.service", "livingkv.toml", "livingkv.env", "Containerfile", "Caddyfile", "nginx.conf",
         "alerts.yml")  # fmt: skip
TEXTS = {name: read(f"deploy/{name}") for name in NAMES}
UNIT, CONTAINER = TEXTS["livingkv.service"], TEXTS["Containerfile"]
COMMAND = re.compile(r"(?:^|[ /=])livingkv ((?:keys |model )?[a-z]+)\b([^#\n]*)", re.MULTILINE)


def test_every_file_is_looked_at() -> None:
    assert {path.name for path in (ROOT / "deploy").iterdir()} == set(NAMES)
    assert all(f"({name})" in TEXTS["README.md"] or name in TEXTS["README.md"] for name in NAMES[1:-1])


@pytest.mark.parametrize("name", ["README.md", "livingkv.service"])
def test_commands_and_their_flags_exist(name: str) -> None:
    known = dict(verbs())
    shell = "\n".join(blocks(TEXTS[name], "sh")) if name == "README.md" else TEXTS[name]
    found = [(verb, rest) for verb, rest in COMMAND.findall(shell.replace("\\\n", " ")) if verb in known]
    assert found
    for verb, rest in found:
        assert set(re.findall(r"--[a-z-]+", rest)) <= known[verb] | {"--help"}, verb


@pytest.mark.parametrize("name", NAMES)
def test_variables_exist(name: str) -> None:
    known = {CONFIG_VARIABLE, "LIVINGKV_CACHE", *(each.variable for each in SETTINGS)}
    assert set(re.findall(r"\bLIVINGKV_\w+", TEXTS[name])) <= known


@pytest.mark.parametrize("name", NAMES)
def test_there_is_no_secret(name: str) -> None:
    assert not re.search(r"lkv_[0-9a-f]{12}_|BEGIN .*PRIVATE KEY|(?i:password|token|secret)\s*[=:]", TEXTS[name])


def test_the_settings_are_allowed_and_need_keys() -> None:
    in_force = settings_in_force({}, {}, ROOT / "deploy" / "livingkv.toml")
    options = server_options(in_force)
    assert options.keys_file == Path("/var/lib/livingkv/keys.json")
    assert options.folder == Path("/var/lib/livingkv/stores")
    lines = [line.lstrip("#") for line in TEXTS["livingkv.env"].splitlines() if re.match(r"#?[A-Z_]+=", line)]
    variables = dict(line.split("=", 1) for line in lines)
    assert any(name.startswith("LIVINGKV_SERVE_") for name in variables)
    server_options(settings_in_force({"folder": "s"}, variables, None))


def test_the_container_is_told_what_the_service_needs() -> None:
    variables = dict(re.findall(r"(LIVINGKV_\w+)=(\S+)", CONTAINER))
    options = server_options(settings_in_force({}, variables, None))
    assert options.keys_file is not None and options.host == "0.0.0.0"
    assert f"EXPOSE {options.port}" in CONTAINER
    volumes = re.findall(r'"(/\w+)"', CONTAINER[CONTAINER.index("VOLUME") :].splitlines()[0])
    places = (str(options.folder), str(options.keys_file), variables["LIVINGKV_CACHE"])
    assert all(any(place == each or place.startswith(f"{each}/") for each in volumes) for place in places)
    user = re.findall(r"^USER (.*)$", CONTAINER, re.MULTILINE)[-1]
    assert user.split(":")[0] not in ("0", "root")
    health = re.findall(r"'(/[a-z]+)'", CONTAINER[CONTAINER.index("HEALTHCHECK") :])
    assert health == ["/health"] and set(health) <= set(OPEN_PATHS)


def test_what_the_container_copies_is_there_and_let_in() -> None:
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    named = re.findall(r"EXTRAS=([\w,]+)", CONTAINER + TEXTS["README.md"])
    assert named and all(extra in extras for each in named for extra in each.split(","))
    copied = [
        part for line in re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINER, re.MULTILINE) for part in line.split()
    ]
    assert copied and all((ROOT / part).exists() for part in copied)
    let_in = re.findall(r"^!(.*)$", read(".dockerignore"), re.MULTILINE)
    assert sorted(copied) == sorted(let_in) and "\n*\n" in read(".dockerignore")
    packaged = tomllib.loads(read("pyproject.toml"))["project"]
    assert {packaged["readme"], *packaged["license-files"]} <= set(copied)


def test_the_unit_and_the_steps_name_the_same_places() -> None:
    for place in re.findall(r"(?:/opt|/etc|/var)/[\w/.-]*livingkv[\w/.-]*", UNIT):
        assert (place if "/bin/" in place else str(Path(place).parent)) in TEXTS["README.md"], place
    assert f"StateDirectory={Path('/var/lib/livingkv').name}\n" in UNIT and "CacheDirectory=livingkv\n" in UNIT
    stop_s = float(re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[0])
    stopping = setting_called("stop_s")
    assert stopping is not None and stop_s >= 2 * (stopping.default + LAST_STEP_S)


def test_proxies_ask_where_the_service_listens() -> None:
    options = server_options(settings_in_force({}, {}, ROOT / "deploy" / "livingkv.toml"))
    (name,) = options.allowed_hosts
    for proxy in (TEXTS["Caddyfile"], TEXTS["nginx.conf"]):
        assert f"{options.host}:{options.port}" in proxy and name in proxy
    assert "flush_interval -1" in TEXTS["Caddyfile"] and "proxy_buffering off" in TEXTS["nginx.conf"]


def test_alerts_ask_for_metrics_that_exist() -> None:
    known = {f"{name}{end}" for name in exported() for end in ("", "_bucket", "_count", "_sum")}
    named = set(re.findall(r"\blivingkv_\w+", TEXTS["alerts.yml"]))
    assert len(named) >= 8 and named <= known


@pytest.mark.slow
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "livingkv.service"
    unit.write_text(UNIT.replace("/opt/livingkv/bin/livingkv", sys.executable))
    verified = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    told = [line for line in (verified.stdout + verified.stderr).splitlines() if "livingkv" in line]
    assert verified.returncode == 0 and told == []
    command = [analyze, "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)]
    exposed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in exposed.stderr:
        pytest.skip("this systemd-analyze looks at no files")
    assert exposed.returncode == 0, exposed.stdout
