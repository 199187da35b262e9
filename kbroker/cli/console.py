"""`kbroker console`: serve pages that show a cluster in a browser."""

from ipaddress import ip_address
from typing import Annotated

from kbroker.cli.common.client import parse_bootstrap
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, option
from kbroker.cli.common.values import parse_host_port
from kbroker.common import install_command

DEFAULT_ADDRESS = "127.0.0.1:8080"


def console(
    listen: Annotated[str, option("--listen HOST:PORT", "Serve the pages on this address.")] = DEFAULT_ADDRESS,
    write: Annotated[
        bool, option("--write", "Allow users to produce records, and to change configs, offsets and transactions.")
    ] = False,
    allow_remote: Annotated[
        bool,
        option(
            "--allow-remote",
            "Allow an address of --listen that other machines reach. Users need the token of the printed URL.",
        ),
    ] = False,
    host: Annotated[
        list[str] | None,
        option("--host NAME", "A name in URLs of the console, besides localhost and the one of --listen; repeatable."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve pages that show a cluster in a browser, until Ctrl-C.

    Whoever reaches the pages has the rights of --command-config. So the console needs a token in its URL if other
    machines reach it, or if it logs in to the cluster. The token is random, or that of KBROKER_CONSOLE_TOKEN.

    Example: kbroker console -b kafka.example:9092 --listen 127.0.0.1:8080
    """
    name, port = parse_host_port(listen, "--listen")
    if not is_local(name) and not allow_remote:
        raise usage_error(f"--listen {listen} can be reached from other machines: add --allow-remote, or use 127.0.0.1")
    try:
        from kbroker.console.server import serve
    except ImportError:
        raise missing_packages() from None
    serve(parse_bootstrap(bootstrap), name, port, allows_writes=write, is_local=is_local(name), hosts=host or ())


def missing_packages() -> CliError:
    return CliError(f"the console needs packages: {install_command('console')}")


def is_local(name: str) -> bool:
    """Return whether only this machine reaches an address."""
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
