"""Serves the console until SIGTERM or SIGINT."""

import os
import secrets
import signal
import socket
from collections.abc import Sequence

import uvicorn

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.client.requests import Address
from kbroker.client.security import current_security
from kbroker.common import format_address
from kbroker.console.app import create_app
from kbroker.console.guard import TOKEN_PARAMETER
from kbroker.console.settings import ConsoleSettings

TOKEN_VARIABLE = "KBROKER_CONSOLE_TOKEN"
MIN_TOKEN_CHARACTERS = 16
# Requests of open pages end within this time when the console stops.
STOP_S = 2


def serve(
    bootstrap: Sequence[Address], host: str, port: int, *, allows_writes: bool, is_local: bool, hosts: Sequence[str]
) -> None:
    """Serve until a signal. Raises CliError."""
    security = current_security()
    token = None
    if not is_local or security.mechanism or security.key_store:
        token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise usage_error(f"{TOKEN_VARIABLE} must have at least {MIN_TOKEN_CHARACTERS} characters")
    # Addresses that stand for all of this machine are not in its URL.
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    settings = ConsoleSettings(bootstrap, security, allows_writes, frozenset({name, *hosts}), token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        # Python adds the address.
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise CliError(f"cannot listen on {format_address(host, port)}: {reason}") from None
    address = format_address(name, listener.getsockname()[1])
    query = f"?{TOKEN_PARAMETER}={token}" if token is not None else ""
    print(f"kbroker console ready: http://{address}/{query}", flush=True)
    config = uvicorn.Config(
        create_app(settings), log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=STOP_S,
    )  # fmt: skip
    # uvicorn stops, and then raises the signal again.
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])
