"""The verbs of the service: serve, and keys add, list and revoke.

Knows the words of the command line; the service is in server/. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from livingkv.cli_options import Debug, Dual, Json, KeyFolder, Model, RamBudget, Weights, parse_size
from livingkv.cli_process import say
from livingkv.errors import StoreUnwritable

serve_app = typer.Typer()
keys_app = typer.Typer(help="API keys of a service: add, list, revoke.", no_args_is_help=True)

KeysFile = Annotated[Path, typer.Argument(metavar="FILE", help="The keys file.", show_default=False)]
Stores = Annotated[Path, typer.Argument(metavar="STORE_DIR", help="Holds a store for each tenant.", show_default=False)]
Host = Annotated[str, typer.Option(metavar="H", help="Another than this machine's own needs --keys.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="P", help="0 takes any free one.")]
Keys = Annotated[Path | None, typer.Option(metavar="FILE", help="API keys, made by keys add.", show_default=False)]
Window = Annotated[
    int, typer.Option("--window", metavar="N", help="Newest tokens of a conversation that are attended.")
]
Context = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Longest prompt and reply; left out: the model's.", show_default=False),
]
Parallel = Annotated[int, typer.Option(min=1, metavar="N", help="Requests whose steps take turns.")]
Queue = Annotated[int, typer.Option(min=1, metavar="N", help="Requests that may wait.")]
Rate = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Requests a minute for each key.", show_default=False)
]
Quota = Annotated[
    int | None,
    typer.Option(metavar="SIZE", parser=parse_size, help="Disk space of each tenant.", show_default=False),
]
Hosts = Annotated[list[str] | None, typer.Option(metavar="NAME", help="A name in Host headers.", show_default=False)]
Origins = Annotated[
    list[str] | None, typer.Option(metavar="URL", help="Web pages from there may ask.", show_default=False)
]


@serve_app.command()
def serve(
    folder: Stores,
    model: Model = None,
    host: Host = "127.0.0.1",
    port: Port = 8345,
    keys: Keys = None,
    weights: Weights = None,
    dual_chunk: Dual = None,
    window: Window = 4096,
    context: Context = None,
    parallel: Parallel = 2,
    queue: Queue = 64,
    rate: Rate = None,
    tenant_quota: Quota = None,
    allow_host: Hosts = None,
    allow_origin: Origins = None,
    ram_budget: RamBudget = None,
    key_folder: KeyFolder = None,
    debug: Debug = False,
) -> int:
    """Serve OpenAI's API: conversations are kept, and only what is new of them is read.

    Without --keys there is one tenant, default, and only this machine is served.

    \b
    Examples:
      livingkv serve memory/
      livingkv keys add keys.json --tenant anna --scope write
      livingkv serve memory/ --host 0.0.0.0 --keys keys.json
    """
    from livingkv.cli_options import chosen_model
    from livingkv.model_choice import ModelChoice
    from livingkv.server.options import ServerOptions
    from livingkv.server.serving import serve as serve_until_told
    from livingkv.server.settings import service_settings

    if folder.exists() and not folder.is_dir():
        raise StoreUnwritable(f"{folder} is not a folder: choose another path for the stores")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    options = ServerOptions(
        folder,
        host=host,
        port=port,
        keys_file=keys,
        settings=service_settings(window_tokens=window, ram_budget_bytes=ram_budget, key_folder=key_folder),
        context_tokens=context,
        n_side_by_side=parallel,
        n_waiting=queue,
        requests_per_minute=rate,
        max_tenant_bytes=tenant_quota,
        allowed_hosts=tuple(allow_host or ()),
        allowed_origins=tuple(allow_origin or ()),
    )
    return serve_until_told(options, ModelChoice.of(chosen_model(model, weights, dual_chunk)), say)


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
