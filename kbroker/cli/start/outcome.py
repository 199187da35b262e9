"""What `kbroker start` prints: the ready line, or why the broker cannot run.

This module is loaded before the first accepted connection: it imports only what a start needs.
"""

from kbroker.cli.common.errors import exception_text
from kbroker.config import ConfigError


def print_ready(bootstrap: str) -> None:
    """Print the only line on standard output: scripts wait for it and read the address from it."""
    print(f"kbroker ready: bootstrap {bootstrap}", flush=True)


def failure_text(error: Exception) -> str:
    if not isinstance(error, ConfigError):
        return f"the broker cannot run: {exception_text(error)}"
    return f"{error} (see --advertise HOST:PORT)" if "advertised.listeners" in str(error) else str(error)
