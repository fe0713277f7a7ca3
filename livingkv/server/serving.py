"""A service as a process: uvicorn, signals, the line that says where it listens.

Knows sockets and signals; knows no route. SIGTERM and SIGINT end it: streams may go on for `stop_s`, then they are cut,
and what was acknowledged is durable already.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from livingkv.errors import InputError, LivingKVError, ModelError
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel
from livingkv.server.app import create_app
from livingkv.server.heap import share_heaps
from livingkv.server.inference_thread import Phase
from livingkv.server.options import ServerOptions
from livingkv.server.service import Service

_POLL_S = 0.05
_WATCH_S = 0.5
"""How soon a service whose thread failed is noticed."""
_LAST_STEP_S = 2.5
"""How long a step that is under way may take before the process leaves it behind."""


def serve(options: ServerOptions, model: ModelChoice | LoadedModel, say: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. `say` gets a line when requests are taken.

    Raises InputError (the address is taken, the keys file cannot be read), or why the model could not be loaded or the
    service failed later; it ends then.
    """
    share_heaps()
    service = Service(options, model)
    app = create_app(service)
    listening = _bound(options.host, options.port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=int(options.stop_s),
        limit_concurrency=None,
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # what uvicorn puts back when it has handled one
    service.start()
    try:
        was_ready = asyncio.run(_serve(server, listening, service, say))
    finally:
        stopped = service.stop(_LAST_STEP_S)
        listening.close()
    if service.phase is Phase.FAILED and service.error is not None:
        raise _reason(service.error, "the service failed" if was_ready else "the model did not start")
    if not stopped:  # a step is still under way on its thread: nothing of it was acknowledged
        sys.stderr.flush()
        os._exit(0)
    return 0


async def _serve(
    server: uvicorn.Server, listening: socket.socket, service: Service, say: Callable[[str], None]
) -> bool:
    """Serve until told to stop, or until the service fails. True if it was ready."""
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    was_ready = False
    while not serving.done():
        if service.phase is Phase.FAILED:
            server.should_exit = True
            break
        if service.phase is Phase.READY and not was_ready:
            was_ready = True
            host, port = listening.getsockname()[:2]
            say(f"livingkv: {service.model_name} is served on http://{f'[{host}]' if ':' in host else host}:{port}/v1")
        await asyncio.wait({serving}, timeout=_WATCH_S if was_ready else _POLL_S)
    await serving
    return was_ready


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InputError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)  # TCP by its name: asyncio sets TCP_NODELAY on no other
    except OSError as error:
        raise InputError("host", host, f"an address of this machine is needed ({error.strerror})") from error
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
    except OSError as error:
        made.close()
        raise InputError("host and port", f"{host}:{port}", f"a free one is needed ({error.strerror})") from error
    return made


def _reason(error: Exception, what: str) -> Exception:
    """Why it ended: livingkv's own errors say it in one line."""
    return error if isinstance(error, LivingKVError) else ModelError(f"{what}: {type(error).__name__}")
