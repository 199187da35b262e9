"""`kbroker start`: from options and a file to the broker's properties, and into the broker.

Precedence, weakest first: kbroker's own defaults for these options, the file, --set, the dedicated options.
This module is on the way to the first accepted connection: it imports nothing that a start does not need.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.cli.errors import CliError, complain, explain, usage
from kbroker.cli.values import assignments, host_port

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA_DIR = "kbroker-data"


@dataclass(slots=True)
class StartOptions:
    """The options of `kbroker start` as they were written."""

    config: str | None = None
    data_dir: str | None = None
    listen: str | None = None
    advertise: str | None = None
    set: list[str] = field(default_factory=list)
    log_level: str = "info"


_OPTIONS = {
    "--config": "config",
    "--data-dir": "data_dir",
    "--listen": "listen",
    "--advertise": "advertise",
    "--set": "set",
    "--log-level": "log_level",
}
LOG_LEVELS = ("debug", "info", "warning", "error")


def parse_plain(args: Sequence[str]) -> StartOptions | None:
    """Options as `--name VALUE` or `--name=VALUE`; None for anything else: help, mistakes, all typer's."""
    options = StartOptions()
    rest = iter(args)
    for arg in rest:
        name, sign, value = arg.partition("=")
        attribute = _OPTIONS.get(name)
        given = value if sign else next(rest, None)
        if attribute is None or given is None:
            return None
        if attribute == "set":
            options.set.append(given)
        else:
            setattr(options, attribute, given)
    return options


def properties(options: StartOptions) -> dict[str, str]:
    """The broker's properties by Kafka's names. Raises CliError for what cannot be read."""
    given = read_toml(options.config) if options.config is not None else {}
    given.update(assignments(options.set))
    if options.data_dir is not None:
        given.pop("log.dir", None)
        given["log.dirs"] = options.data_dir
    if options.listen is not None:
        given["listeners"] = _listener(options.listen, "--listen")
    if options.advertise is not None:
        given["advertised.listeners"] = _listener(options.advertise, "--advertise")
    given.setdefault("listeners", f"PLAINTEXT://{DEFAULT_LISTEN}")
    if "log.dir" not in given:
        given.setdefault("log.dirs", DEFAULT_DATA_DIR)
    return given


def _listener(address: str, option: str) -> str:
    host, port = host_port(address, option)
    return f"PLAINTEXT://[{host}]:{port}" if ":" in host else f"PLAINTEXT://{host}:{port}"


def read_toml(path: str) -> dict[str, str]:
    """Properties from a TOML file, their dotted names written as quoted keys or as nested tables."""
    import tomllib

    try:
        with open(path, "rb") as file:
            return flatten(tomllib.load(file))
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path} is not valid TOML: {error}") from None


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested tables to dotted names; true to "true", a list to "a,b"."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            flat.update(flatten(value, name + "."))
        elif isinstance(value, list):
            flat[name] = ",".join(_scalar(item) for item in value)
        else:
            flat[name] = _scalar(value)
    return flat


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def announce(bootstrap: str) -> None:
    """The one line on standard output: scripts wait for it and take the address from it."""
    print(f"kbroker ready: bootstrap {bootstrap}", flush=True)


def start(options: StartOptions) -> int:
    """Run the broker until it is told to stop; gives the exit status."""
    import logging

    try:
        if options.log_level.lower() not in LOG_LEVELS:
            raise usage(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {options.log_level!r}")
        logging.basicConfig(
            stream=sys.stderr,
            level=options.log_level.upper(),
            format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        )
        from kbroker.config import BrokerConfig

        config = BrokerConfig.load(properties(options))
        from kbroker.broker import run

        return run(config, on_ready=announce)
    except KeyboardInterrupt:
        return 130
    except CliError as error:
        complain(str(error))
        return error.status
    except Exception as error:
        logging.getLogger("kbroker").debug("where it failed:", exc_info=True)
        complain(_reason(error))
        return 1


def _reason(error: Exception) -> str:
    from kbroker.config import ConfigError

    if not isinstance(error, ConfigError):
        return f"the broker cannot run: {explain(error)}"
    by_option = "advertised.listeners" in str(error)
    return f"{error} (--advertise HOST:PORT does it)" if by_option else str(error)
