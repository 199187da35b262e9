"""The options of `kbroker start`, and the broker's properties that result from them.

Sources of properties, weakest first: kbroker's defaults for these options, the file, the environment (KBROKER_*),
--set, the dedicated options.
This module is loaded before the first accepted connection: it imports only what a start needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from errno import EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.cli.common.errors import CliError, exception_text
from kbroker.cli.common.values import parse_assignments, parse_host_port
from kbroker.cli.start.directories import is_cluster_directory
from kbroker.common import format_address
from kbroker.config import ConfigError
from kbroker.config.broker.listeners import PLAINTEXT, PROTOCOLS
from kbroker.config.definitions.broker import BROKER_CONFIGS, strip_listener_prefix
from kbroker.config.sources.static_configs import StaticConfig, StaticConfigs, from_environment, merge_sources
from kbroker.config.values import PASSWORD
from kbroker.units import config_number

if TYPE_CHECKING:
    from kbroker.config.broker.security import FirstUser

DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_DATA_DIR = "kbroker-data"
# The origin of a property that no source sets.
DEFAULT_ORIGIN = "default"


@dataclass(slots=True)
class StartOptions:
    """The options of `kbroker start`, not yet parsed."""

    config: str | None = None
    data_dir: str | None = None
    listen: list[str] = field(default_factory=list)
    advertise: list[str] = field(default_factory=list)
    set: list[str] = field(default_factory=list)
    log_level: str = "info"
    log_format: str | None = None
    metrics: str | None = None
    brokers: int | None = None
    add_scram: list[str] = field(default_factory=list)
    secure: bool = False
    console: str | None = None
    dev: bool = False
    control: str | None = None
    control_insecure_host: list[str] = field(default_factory=list)

    @property
    def protocol(self) -> str:
        """The security protocol of listeners for which the command line names none."""
        return "SASL_SSL" if self.secure else PLAINTEXT


_ATTRIBUTES = {
    "--config": "config",
    "--data-dir": "data_dir",
    "--listen": "listen",
    "--advertise": "advertise",
    "--set": "set",
    "--log-level": "log_level",
    "--log-format": "log_format",
    "--metrics": "metrics",
    "--brokers": "brokers",
    "--add-scram": "add_scram",
    "--control": "control",
    "--control-insecure-host": "control_insecure_host",
    "--console": "console",
}
_LISTS = ("set", "listen", "advertise", "add_scram", "control_insecure_host")


def parse_options(args: Sequence[str]) -> StartOptions | None:
    """Parse `--name VALUE` and `--name=VALUE`; None for anything else (help, mistakes), which typer handles."""
    options = StartOptions()
    remaining = iter(args)
    for arg in remaining:
        if arg in ("--secure", "--dev"):
            setattr(options, arg[2:], True)
            continue
        name, sign, text = arg.partition("=")
        attribute = _ATTRIBUTES.get(name)
        value = text if sign else next(remaining, None)
        if attribute is None or value is None:
            return None
        if attribute in _LISTS:
            getattr(options, attribute).append(value)
        elif attribute == "brokers":
            if not value.isascii() or not value.isdigit():
                return None
            options.brokers = int(value)
        else:
            setattr(options, attribute, value)
    return options


def parse_first_users(specs: Sequence[str]) -> list["FirstUser"]:
    """Parse the values of --add-scram: a user each, or @FILE with a user in each line. Raises CliError."""
    if not specs:
        return []
    from kbroker.config.broker.security import parse_first_user

    lines: list[str] = []
    try:
        for spec in specs:
            lines += Path(spec[1:]).read_text().splitlines() if spec.startswith("@") else [spec]
        return [parse_first_user(line) for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise CliError(f"--add-scram: {exception_text(error)}") from None


def load_properties(options: StartOptions, environment: Mapping[str, str]) -> tuple[StaticConfigs, list[str]]:
    """Return the properties with their origins, and warnings about properties that are ignored.

    Durations and sizes with units are plain numbers then. Raises CliError for options and files that cannot be parsed;
    property names and values are not validated otherwise.
    """
    from_file, warnings = ({}, []) if options.config is None else _read_file(options.config)
    properties = merge_sources(
        from_file,
        from_environment(environment),
        _assigned(options.set),
        _dedicated(options),
    )
    properties.setdefault("listeners", StaticConfig(f"{options.protocol}://{DEFAULT_LISTEN}", DEFAULT_ORIGIN))
    protocols = _protocols(options.listen, options.protocol)
    if protocols:
        properties.setdefault("listener.security.protocol.map", StaticConfig(protocols, "--listen"))
    if "log.dir" not in properties:
        properties.setdefault("log.dirs", StaticConfig(DEFAULT_DATA_DIR, DEFAULT_ORIGIN))
    for name, source in properties.items():
        try:
            properties[name] = source._replace(text=config_number(name, source.text))
        except ValueError as error:
            raise CliError(f"{error} (from {source.origin})") from None
    return properties, warnings


def check_single(directory: str) -> None:
    """Raise CliError if a data directory is that of several brokers."""
    if is_cluster_directory(directory):
        raise CliError(f"{directory} has the data of several brokers: start them with --brokers")


def _dedicated(options: StartOptions) -> StaticConfigs:
    """Return the properties that are set by dedicated options."""
    properties = {}
    if options.data_dir is not None:
        properties["log.dirs"] = StaticConfig(options.data_dir, "--data-dir")
    for name, option, texts in (
        ("listeners", "--listen", options.listen),
        ("advertised.listeners", "--advertise", options.advertise),
    ):
        if texts:
            properties[name] = StaticConfig(
                ",".join(_listener(text, option, options.protocol) for text in texts), option
            )
    if options.metrics is not None:
        properties["kbroker.metrics.listener"] = StaticConfig(_address(options.metrics, "--metrics"), "--metrics")
    if options.log_format is not None:
        properties["kbroker.log.format"] = StaticConfig(options.log_format, "--log-format")
    return properties


def _assigned(assignments: Sequence[str]) -> StaticConfigs:
    """Return the properties of --set. A password may be @FILE: literal ones are in the list of processes."""
    properties = {}
    for name, text in parse_assignments(assignments).items():
        if _is_password(name) and text.startswith("@"):
            try:
                text = Path(text[1:]).read_text().removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise CliError(f"--set {name}: {exception_text(error)}") from None
        properties[name] = StaticConfig(text, "--set")
    return properties


def exposed_secrets(options: StartOptions) -> list[str]:
    """Return the options whose secrets are in the list of processes, in the form that avoids it."""
    names = [name for name, text in parse_assignments(options.set).items() if _is_password(name) and text[:1] != "@"]
    users = ["--add-scram @FILE"] if any(not spec.startswith("@") for spec in options.add_scram) else []
    return [f"--set {name}=@FILE" for name in names] + users


def _is_password(name: str) -> bool:
    key = BROKER_CONFIGS.get(strip_listener_prefix(name))
    return key is not None and key.type is PASSWORD


def _listener(text: str, option: str, protocol: str) -> str:
    """Return NAME://HOST:PORT. A listener without a name is called like its protocol."""
    name, separator, address = text.rpartition("://")
    return f"{name if separator else protocol}://{_address(address, option)}"


def _protocols(listen: Sequence[str], protocol: str) -> str:
    """Return listener.security.protocol.map for listeners that have names of their own, "" if there are none."""
    names = {text.rpartition("://")[0].upper() for text in listen} - {"", *PROTOCOLS}
    default = BROKER_CONFIGS["listener.security.protocol.map"].default
    return ",".join((str(default), *(f"{name}:{protocol}" for name in sorted(names)))) if names else ""


def _address(address: str, option: str) -> str:
    return format_address(*parse_host_port(address, option))


def _read_file(path: str) -> tuple[StaticConfigs, list[str]]:
    from kbroker.config.sources.files import drop_removed_configs, parse_config_file

    try:
        with open(path, "rb") as file:
            return drop_removed_configs(parse_config_file(path, file.read()))
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None
    except ConfigError as error:
        raise CliError(str(error)) from None


def origins_text(message: str, properties: StaticConfigs) -> str:
    """Return ` (from FILE:LINE, --set)` for the properties that an error message names, "" if there are none."""
    words = {word.strip("(),.:;'") for word in message.split()}
    origins = {
        source.origin: None for name, source in properties.items() if name in words and source.origin != DEFAULT_ORIGIN
    }
    return f" (from {', '.join(origins)})" if origins else ""


def print_ready(bootstrap: str, control: str | None = None) -> None:
    """Print the only line on standard output: scripts wait for it and read the addresses from it."""
    print(f"kbroker ready: bootstrap {bootstrap}" + (f" control {control}" if control else ""), flush=True)


def failure_text(error: Exception) -> str:
    if not isinstance(error, ConfigError):
        hint = " (see --listen HOST:PORT)" if isinstance(error, OSError) and error.errno == EADDRINUSE else ""
        return f"the broker cannot run: {exception_text(error)}{hint}"
    if "inter.broker.listener.name" in str(error) or "advertised.listeners" not in str(error):
        return str(error)
    return f"{error} (see --advertise HOST:PORT)"
