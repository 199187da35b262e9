"""`kbroker start`: from options, environment and a file to the broker's properties, and into the broker.

Precedence, weakest first: kbroker's own defaults for these options, the file, the environment (KBROKER_*), --set, the
dedicated options.
This module is on the way to the first accepted connection: it imports nothing that a start does not need.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.cli.common.errors import CliError, complain, explain, usage
from kbroker.cli.common.values import assignments, host_port
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.sources import Given, Sourced, from_environment, layered
from kbroker.runtime.event_log import EventLogger, formatter

if TYPE_CHECKING:
    from logging import Handler

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA_DIR = "kbroker-data"
# The origin of what nobody has set.
UNSET = "default"


@dataclass(slots=True)
class StartOptions:
    """The options of `kbroker start` as they were written."""

    config: str | None = None
    data_dir: str | None = None
    listen: str | None = None
    advertise: str | None = None
    set: list[str] = field(default_factory=list)
    log_level: str = "info"
    log_format: str | None = None
    metrics: str | None = None


_OPTIONS = {
    "--config": "config",
    "--data-dir": "data_dir",
    "--listen": "listen",
    "--advertise": "advertise",
    "--set": "set",
    "--log-level": "log_level",
    "--log-format": "log_format",
    "--metrics": "metrics",
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
    return {name: one.text for name, one in sourced(options, os.environ)[0].items()}


def sourced(options: StartOptions, environment: Mapping[str, str]) -> tuple[Given, list[str]]:
    """The properties with where each comes from, and sentences about those that are left out.

    Raises CliError for what cannot be read; what the names and values are worth is not checked.
    """
    from_config, sentences = ({}, []) if options.config is None else _read(options.config)
    given = layered(
        from_config,
        from_environment(environment),
        {name: Sourced(text, "--set") for name, text in assignments(options.set).items()},
        _dedicated(options),
    )
    given.setdefault("listeners", Sourced(f"PLAINTEXT://{DEFAULT_LISTEN}", UNSET))
    if "log.dir" not in given:
        given.setdefault("log.dirs", Sourced(DEFAULT_DATA_DIR, UNSET))
    return given, sentences


def _dedicated(options: StartOptions) -> Given:
    """The properties that have options of their own."""
    given = {}
    if options.data_dir is not None:
        given["log.dirs"] = Sourced(options.data_dir, "--data-dir")
    if options.listen is not None:
        given["listeners"] = Sourced(_listener(options.listen, "--listen"), "--listen")
    if options.advertise is not None:
        given["advertised.listeners"] = Sourced(_listener(options.advertise, "--advertise"), "--advertise")
    if options.metrics is not None:
        host, port = host_port(options.metrics, "--metrics")
        given["kbroker.metrics.listener"] = Sourced(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}", "--metrics"
        )
    if options.log_format is not None:
        given["kbroker.log.format"] = Sourced(options.log_format, "--log-format")
    return given


def _listener(address: str, option: str) -> str:
    host, port = host_port(address, option)
    return f"PLAINTEXT://[{host}]:{port}" if ":" in host else f"PLAINTEXT://{host}:{port}"


def _read(path: str) -> tuple[Given, list[str]]:
    from kbroker.config.files import from_file, without_removed

    try:
        with open(path, "rb") as file:
            return without_removed(from_file(path, file.read()))
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None
    except ConfigError as wrong:
        raise CliError(str(wrong)) from None


def announce(bootstrap: str) -> None:
    """The one line on standard output: scripts wait for it and take the address from it."""
    print(f"kbroker ready: bootstrap {bootstrap}", flush=True)


def start(options: StartOptions) -> int:
    """Run the broker until it is told to stop; gives the exit status."""
    import logging

    try:
        if options.log_level.lower() not in LOG_LEVELS:
            raise usage(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {options.log_level!r}")
        lines = logging.StreamHandler(sys.stderr)
        lines.setFormatter(formatter("text"))
        logging.basicConfig(level=options.log_level.upper(), handlers=[lines])
        config = _config(options, lines)
        lines.setFormatter(formatter(config.kbroker_log_format))
        from kbroker.broker import run

        return run(config, on_ready=announce)
    except KeyboardInterrupt:
        return 130
    except CliError as error:
        complain(str(error))
        return error.status
    except Exception as error:
        logging.getLogger("kbroker").debug("where it failed", exc_info=True)
        complain(_reason(error))
        return 1


def _config(options: StartOptions, lines: "Handler") -> BrokerConfig:
    """`lines` gets the format that is asked for. Raises CliError, ConfigError."""
    given, sentences = sourced(options, os.environ)
    if "kbroker.log.format" in given:
        lines.setFormatter(formatter(given["kbroker.log.format"].text))
    for sentence in sentences:
        EventLogger("kbroker").warning("config left out", reason=sentence)
    try:
        return BrokerConfig.load({name: one.text for name, one in given.items()})
    except ConfigError as wrong:
        raise ConfigError(f"{wrong}{origins(str(wrong), given)}") from None


def origins(message: str, given: Given) -> str:
    """Where the configs stand that a refusal is about, as a part of a sentence."""
    words = {word.strip("(),.:;'") for word in message.split()}
    places = {one.origin: None for name, one in given.items() if name in words and one.origin != UNSET}
    return f" (from {', '.join(places)})" if places else ""


def _reason(error: Exception) -> str:
    if not isinstance(error, ConfigError):
        return f"the broker cannot run: {explain(error)}"
    by_option = "advertised.listeners" in str(error)
    return f"{error} (--advertise HOST:PORT does it)" if by_option else str(error)
