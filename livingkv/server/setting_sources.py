"""The settings in force: from flags, then the environment, then a settings file, then the defaults.

Knows where settings come from, and names that place in every error; the values are checked by what they become.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from livingkv.errors import InputError
from livingkv.server.options import ServerOptions
from livingkv.server.setting_table import CONFIG_VARIABLE, PREFIX, SETTINGS, Group, Setting, setting_called
from livingkv.settings import Settings

_PATHS = ("folder", "keys_file")
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class InForce:
    """A setting's value, and where it comes from: a flag, a variable, a key of a file, or "default"."""

    setting: Setting
    value: Any
    origin: str


def settings_in_force(
    flags: Mapping[str, object], environment: Mapping[str, str], config: Path | None
) -> tuple[InForce, ...]:
    """Every setting of the table. flags: by name; what was not given is None or empty. config: a settings file; None
    takes the one that the environment names, if any. An empty variable is one that is not set.

    Raises InputError for a file that cannot be read, an unknown key or variable, and a value of another kind.
    """
    _check_variables(environment)
    named = environment.get(CONFIG_VARIABLE)
    path = config if config is not None else Path(named) if named else None
    in_file = {} if path is None else _read(path)
    return tuple(_one(setting, flags, environment, in_file, path) for setting in SETTINGS)


def _one(
    setting: Setting, flags: Mapping[str, object], environment: Mapping[str, str], in_file: dict[str, Any],
    path: Path | None,
) -> InForce:  # fmt: skip
    flag, text = flags.get(setting.name), environment.get(setting.variable)
    if flag is not None and flag != [] and flag != ():
        read: Callable[[Any], Any] = setting.kind.from_text if isinstance(flag, str) else setting.kind.from_toml
        given, origin = flag, _flag_of(setting)
    elif text:
        read, given, origin = setting.kind.from_text, text, setting.variable
    elif setting.name in in_file:
        read, given, origin = setting.kind.from_toml, in_file[setting.name], f"{setting.name} in {path}"
    else:
        return InForce(setting, setting.default, DEFAULT)
    try:
        return InForce(setting, read(given), origin)
    except ValueError as error:
        raise InputError(origin, repr(given), setting.kind.allowed) from error


def _flag_of(setting: Setting) -> str:
    return f"{setting.flag} ({setting.name})"


def _check_variables(environment: Mapping[str, str]) -> None:
    """A variable of the service that is none is a typing error, which must not be passed over."""
    known = {CONFIG_VARIABLE, *(each.variable for each in SETTINGS)}
    unknown = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    if unknown:
        own = sorted(name for name in known if name.startswith(PREFIX))
        raise InputError(unknown[0], "a variable that is not known", f"known are {', '.join(own)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError("settings file", path, f"a file that can be read is needed ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError("settings file", path, "it is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError("settings file", path, f"it is not TOML: {error}") from error
    for key in found:
        if setting_called(key) is None:
            known = ", ".join(each.name for each in SETTINGS)
            raise InputError(f"{key} in {path}", "a key that is not known", f"known are {known}")
    return found


def server_options(chosen: tuple[InForce, ...]) -> ServerOptions:
    """The options of the service, its memory settings among them. Raises InputError for what is out of range, naming
    where it comes from."""
    try:
        memory = Settings.from_dict(_values(chosen, "memory"))
        values = _values(chosen, "service")
        if values["folder"] is None:
            raise InputError("folder", "nothing", "name the folder of the stores: livingkv serve STORE_DIR")
        paths = {name: Path(values[name]) for name in _PATHS if values[name] is not None}
        return ServerOptions(**{**values, **paths, "settings": memory})
    except InputError as error:
        name = error.field.removeprefix("settings.")
        origin = next((each.origin for each in chosen if each.setting.name == name), DEFAULT)
        if origin == DEFAULT:
            raise
        raise InputError(origin, error.given, error.allowed) from error


def model_values(chosen: tuple[InForce, ...]) -> dict[str, Any]:
    """model, weights, backend, ram_gb, pack and dual_chunk, each None where nobody says it."""
    return _values(chosen, "model")


def _values(chosen: tuple[InForce, ...], group: Group) -> dict[str, Any]:
    return {each.setting.name: each.value for each in chosen if each.setting.group == group}


def shown(chosen: tuple[InForce, ...]) -> str:
    """What is in force and where it comes from, as a settings file that says the same. There are no secrets in it."""
    lines = []
    for each in chosen:
        unset = each.value is None
        line = f"# {each.setting.name} is not set" if unset else f"{each.setting.name} = {_toml(each.value)}"
        lines.append(f"{line:<40}  # {each.origin}" if not unset else line)
    return "\n".join(lines)


def _toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(part) for part in value)}]"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
