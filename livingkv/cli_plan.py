"""The verbs plan and probe: what runs where, at what context and how fast, before anything is bought or fetched.

Knows the words of the command line; the work is in planner/. Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from livingkv.cli_options import Debug, Json
from livingkv.cli_process import ExitCode, say
from livingkv.planner.options import CLOUD, amounts_of, options

plan_app = typer.Typer()
_OPTIONS = options()

Spec = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A folder, config.json, GGUF file, short name, or hub id in the local cache; or the word check.",
        show_default=False,
    ),
]
Given = Annotated[str | None, typer.Argument(metavar="[FILE]", help="With check: the plan.", show_default=False)]
Of = Annotated[
    str | None,
    typer.Option("--of", metavar="MODEL", help="With check: the model that it is about.", show_default=False),
]
Here = Annotated[bool, typer.Option("--here", help="This machine, as `livingkv probe --save` measured it last.")]
Cloud = Annotated[
    bool | None, typer.Option("--cloud/--no-cloud", help="Texts may leave the house, or not.", show_default=False)
]
Priced = Annotated[
    str | None,
    typer.Option(metavar="DATE,REGION,SOURCE", help="Where the prices are from: needed with any.", show_default=False),
]
Currency = Annotated[str | None, typer.Option(metavar="EUR", help="Theirs: needed with any.", show_default=False)]


def plan(
    model: Spec,
    file: Given = None,
    here: Here = False,
    cloud: Cloud = None,
    priced: Priced = None,
    currency: Currency = None,
    of: Of = None,
    as_json: Json = False,
    debug: Debug = False,
    **written: str | None,
) -> int:
    """Say what a model needs, what this machine gives, and what it would take. Needs no network and loads no weights.

    Sizes and speeds are written like 24G, 500GB, 8.2GiB/s, 50Tflop/s.
    What nobody says is unknown: the plan tells what to supply, and
    guesses nothing. `livingkv plan check FILE` computes a plan that was
    written with --json anew and tells what is wrong in it; a model that
    is called check is ./check.

    \b
    Exit codes: 0 done, 1 an error, or a plan that is wrong.
    \b
    Examples:
      livingkv plan qwen2.5-coder-0.5b --context 100k --here
      livingkv plan model.gguf --context 500k --vram 8G --ram 32G --disk 500GB
      livingkv plan config.json --context 128k --weight-bits 4.5 --json > plan.json
      livingkv plan check plan.json
    """
    if model == "check" and file is not None:
        return _check(file, of, as_json=as_json)
    return _plan(
        model,
        {name: text for name, text in written.items() if text is not None},
        here,
        cloud,
        (priced, currency),
        file,
        as_json,
    )


def _plan(
    spec: str,
    written: dict[str, str],
    here: bool,
    cloud: bool | None,
    priced: tuple[str | None, str | None],
    file: str | None,
    as_json: bool,
) -> int:
    from livingkv.cli_plan_render import print_plan
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_json
    from livingkv.errors import InputError
    from livingkv.model_sources import cache_folder
    from livingkv.planner.facts import model_facts
    from livingkv.planner.inputs import Stamp, inputs_of
    from livingkv.planner.plan import plan_of
    from livingkv.planner.probe import last_probe

    if file is not None:
        raise InputError("FILE", file, "one model is planned for; only check takes a file")
    given = amounts_of({**written, **({} if cloud is None else {CLOUD: cloud})})
    stamp = None
    if priced[0] is not None:
        day, region, source = (part.strip() for part in [*priced[0].split(",", 2), "", ""][:3])
        stamp = Stamp(day, region, source, priced[1] or "")
    with waiting("planning"):
        measured = last_probe(cache_folder()) if here else None
        document = plan_of(inputs_of(model_facts(spec), given, measured, stamp))
    if as_json:
        print_json(document)
    else:
        print_plan(document)
    return ExitCode.OK


def _check(file: str, of: str | None, *, as_json: bool) -> int:
    from livingkv.cli_render import print_json, visible
    from livingkv.errors import InputError
    from livingkv.planner.check import MOST_BYTES, check_bytes
    from livingkv.planner.facts import model_facts
    from livingkv.regular_files import read_regular

    try:
        data = read_regular(Path(file), MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            "FILE", file, f"a plan is needed there ({getattr(error, 'strerror', None) or error})"
        ) from error
    errors = check_bytes(data, None if of is None else model_facts(of))
    if as_json:
        print_json({"ok": not errors, "errors": errors})
    else:
        print(
            "\n".join(map(visible, errors))
            if errors
            else f"{visible(file)}: every number and every verdict follows from its inputs"
        )
    if errors:
        say(f"livingkv: {len(errors)} error{'' if len(errors) == 1 else 's'} in {file}")
    return ExitCode.FAILED if errors else ExitCode.OK


def _with_options(verb: Callable[..., int]) -> Callable[..., int]:
    """The verb with an option for each symbol, in the place of its keywords: the laws say which there are."""
    own = [one for one in inspect.signature(verb, eval_str=True).parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            one.symbol,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(one.flag, metavar=one.unit.upper(), help=f"{one.says}.".capitalize(), show_default=False),
            ],
        )
        for one in _OPTIONS
    ]

    def called(**arguments: Any) -> int:
        return verb(**arguments)

    called.__doc__, called.__name__ = verb.__doc__, verb.__name__
    called.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*own, *more)}
    return called


plan_app.command("plan")(_with_options(plan))


@plan_app.command()
def probe(
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="On the drive that is measured; left out: the cache's.", show_default=False),
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Keep the result for `livingkv plan --here`.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure this machine, in under a minute: memory, drive, device, matrices.

    A file of half a GiB is written for it and removed.

    \b
    Examples:
      livingkv probe --save
      livingkv probe --folder /data --json
    """
    from livingkv.cli_plan_render import print_probe
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_json
    from livingkv.model_sources import cache_folder
    from livingkv.planner import probe as probing

    where = _measured_folder(folder)
    with waiting("measuring"):
        found = probing.probe(where.resolve())
    kept = probing.save(found, cache_folder()) if save else None
    if as_json:
        print_json(found.to_json())
    else:
        print_probe(found)
        if kept is not None:
            say(f"kept for --here: {kept}")


def _measured_folder(given: Path | None) -> Path:
    """The folder that is given, or the cache's, made where there is none yet. Raises InputError."""
    from livingkv.errors import InputError
    from livingkv.model_sources import cache_folder

    where = cache_folder() if given is None else given
    try:
        if given is None:
            where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = f"a folder that can be written is needed ({error.strerror})"
        raise InputError("LIVINGKV_CACHE", where, told) from error
    if not where.is_dir():
        raise InputError("--folder", where, "a folder is needed")
    return where
