"""The verbs of the service: serve, and keys add, list and revoke.

Knows the words of the command line; the service is in server/. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from livingkv.backend import experts_pack, experts_ram_bytes
from livingkv.cli_options import Debug, Json
from livingkv.cli_process import say
from livingkv.errors import StoreUnwritable
from livingkv.regular_files import is_folder
from livingkv.server.setting_kinds import SWITCH, TEXTS
from livingkv.server.setting_sources import model_values, server_options, settings_in_force, shown
from livingkv.server.setting_table import SETTINGS, Setting

serve_app = typer.Typer()
keys_app = typer.Typer(help="API keys of a service: add, list, revoke.", no_args_is_help=True)

KeysFile = Annotated[Path, typer.Argument(metavar="FILE", help="The keys file.", show_default=False)]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings, as TOML.", show_default=False)]
Show = Annotated[
    bool, typer.Option("--show-settings", help="Print what is in force and from where, check it, and end.")
]
_PANELS = {"service": "The service", "model": "The model", "memory": "Memory"}


def serve(config: Config = None, show_settings: Show = False, debug: Debug = False, **flags: Any) -> int:
    """Serve OpenAI's API: conversations are kept, and only what is new of them is read.

    Without keys there is one tenant, default, and only this machine is served.
    Every setting may stand in a file or in the environment: docs/SERVE.md.

    \b
    Examples:
      livingkv serve memory/
      livingkv keys add keys.json --tenant anna --scope write
      livingkv serve memory/ --host 0.0.0.0 --keys keys.json
      livingkv serve --config livingkv.toml --show-settings
    """
    chosen = settings_in_force(flags, os.environ, config)
    if show_settings:
        print(shown(chosen))
    options, asked = server_options(chosen), model_values(chosen)
    ram_bytes = experts_ram_bytes(asked["backend"], asked["ram_gb"])
    pack = experts_pack(asked["backend"], asked["pack"])
    if show_settings:
        return 0
    if os.path.lexists(options.folder) and not is_folder(options.folder):
        raise StoreUnwritable(f"{options.folder} is not a folder: choose another path for the stores")
    from livingkv.model_choice import ModelChoice
    from livingkv.server.request_log import start_logging
    from livingkv.server.serving import serve as serve_until_told

    start_logging(options.log_format)
    model = ModelChoice(asked["model"], asked["weights"], asked["dual_chunk"], ram_bytes, pack)
    return serve_until_told(options, model, say)


def _parameter(setting: Setting) -> inspect.Parameter:
    """A setting as a parameter of the verb. What it is if it is left out, the table says."""
    default = "" if setting.default in (None, ()) else f" (default: {setting.default})"
    told = f"{setting.meaning}{default}"
    kind: Any = list[str] if setting.kind is TEXTS else bool if setting.kind is SWITCH else str
    if setting.flag.startswith("-"):
        flags = [f"{setting.flag}/--no-{setting.flag[2:]}"] if setting.kind is SWITCH else [setting.flag]
        flags += ["-m"] if setting.name == "model" else []
        info: Any = typer.Option(
            *flags, metavar=setting.kind.metavar or None, help=told, show_default=False,
            rich_help_panel=_PANELS[setting.group],
        )  # fmt: skip
    else:
        info = typer.Argument(metavar=setting.flag, help=told, show_default=False)
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _with_settings() -> None:
    """Give the verb a parameter for each setting of the table, and add it to the command line."""
    own = inspect.signature(serve, eval_str=True)
    parameters = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    both = [*(_parameter(setting) for setting in SETTINGS), *named]
    serve.__signature__ = own.replace(parameters=both)  # type: ignore[attr-defined]
    serve.__annotations__ = {each.name: each.annotation for each in both} | {"return": int}
    serve_app.command()(serve)


_with_settings()


@keys_app.command("add")
def add(
    file: KeysFile,
    tenant: Annotated[str, typer.Option(metavar="T", help="Whose store it opens.")] = "default",
    name: Annotated[str, typer.Option(metavar="NAME", help="What it is for.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="S", help="read, write or admin; may be repeated. Left out: write.", show_default=False),
    ] = None,
    proxy: Annotated[bool, typer.Option("--proxy", help="Its headers say for which user it asks.")] = False,
    debug: Debug = False,
) -> None:
    """Make a key. It is printed once: the file keeps a salted digest of it.

    \b
    Examples:
      livingkv keys add keys.json
      livingkv keys add keys.json --tenant anna --name laptop --scope read
    """
    from livingkv.server.keys import make_key

    print(make_key(file, tenant, name, scope or ["write"], forwards_users=proxy))


@keys_app.command("list")
def show(file: KeysFile, as_json: Json = False, debug: Debug = False) -> None:
    """Show the keys of a file: id, tenant, scopes and name.

    \b
    Examples:
      livingkv keys list keys.json
    """
    from livingkv.cli_render import print_json
    from livingkv.server.keys import read_keys

    keys = read_keys(file)
    if as_json:
        print_json(
            [
                {
                    "id": key.key_id,
                    "tenant": key.tenant,
                    "scopes": list(key.scopes),
                    "name": key.name,
                    "created_s": key.created_s,
                    "proxy": key.forwards_users,
                }
                for key in keys
            ]
        )
        return
    for key in keys:
        print(f"{key.key_id}  {key.tenant}  {','.join(key.scopes)}  {key.name}".rstrip())


@keys_app.command("revoke")
def revoke(
    file: KeysFile,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As keys list shows it.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Take a key back. A service that is running knows at once.

    \b
    Examples:
      livingkv keys revoke keys.json 0a1b2c3d4e5f
    """
    from livingkv.server.keys import revoke_key

    gone = revoke_key(file, key_id)
    print(f"revoked {gone.key_id} of {gone.tenant}")
