"""The console of `kbroker start --console`: a child process, so that pages take no time from the broker."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.values import parse_host_port
from kbroker.cli.console import is_local, missing_packages


def check_console(address: str) -> None:
    """Raise CliError if a console cannot be served on this address. Only this machine may reach it."""
    if not is_local(parse_host_port(address, "--console")[0]):
        raise usage_error(
            f"--console {address} can be reached from other machines: use 127.0.0.1, or kbroker console --allow-remote"
        )
    if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
        raise missing_packages()


def start_console(address: str, bootstrap: str, command_config: Path | None) -> None:
    """Start the console of a broker. It ends with this process, however that ends. Raises CliError."""
    arguments = [] if command_config is None else ["--command-config", str(command_config)]
    try:
        # Its standard input is a pipe that nobody writes to: it ends with this process. The line with its URL goes to
        # standard error, because scripts read the broker's line from standard output.
        subprocess.Popen(
            [sys.executable, "-m", "kbroker.console", "-b", bootstrap, "--listen", address, *arguments],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
        )
    except OSError as error:
        raise CliError(f"the console cannot start: {error.strerror}") from None
