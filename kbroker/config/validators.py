"""Validators of single config values, with the bounds and the messages of Kafka's ConfigDef validators."""

import re

from kbroker.common import KafkaError
from kbroker.config.config_def import Validator
from kbroker.config.values import ConfigError, Value, format_value, invalid_value
from protocol.errors import ErrorCode

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:\[\]/]*):([0-9]{1,5})")
_PAIR = re.compile(r"(?:[0-9]+:[0-9]+)?")
_DAYS = r"(?:[0-9]+D)?"
_TIME = r"(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]{1,9})?S)?)?"
_BY_DURATION = re.compile(rf"by_duration:P(?=[0-9T]){_DAYS}{_TIME}", re.IGNORECASE)
_CLIENT_ATTRIBUTES = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


def at_least(low: float) -> Validator:
    def check(name: str, value: Value) -> None:
        if isinstance(value, int | float) and value < low:
            raise invalid_value(name, value, f"Value must be at least {format_value(low)}")

    return check


def between(low: float, high: float) -> Validator:
    def check(name: str, value: Value) -> None:
        if isinstance(value, int | float):
            if value < low:
                raise invalid_value(name, value, f"Value must be at least {format_value(low)}")
            if value > high:
                raise invalid_value(name, value, f"Value must be no more than {format_value(high)}")

    return check


def one_of(*allowed: str) -> Validator:
    def check(name: str, value: Value) -> None:
        if value not in allowed:
            raise invalid_value(name, value, f"String must be one of: {', '.join(allowed)}")

    return check


def one_of_ignoring_case(*allowed: str) -> Validator:
    def check(name: str, value: Value) -> None:
        if not isinstance(value, str) or value.upper() not in allowed:
            raise invalid_value(name, value, f"String must be one of (case insensitive): {', '.join(allowed)}")

    return check


def parse_host_port(text: str) -> tuple[str, int] | None:
    """Parse `HOST:PORT`, `[IPV6]:PORT` or `:PORT`. The host has no brackets. None for any other text."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        return None
    return match[1].strip("[]"), int(match[2])


def optional_address(name: str, value: Value) -> None:
    """HOST:PORT or the empty string."""
    if value and parse_host_port(str(value)) is None:
        raise invalid_value(name, value, "Value must be HOST:PORT or empty")


def non_empty_string(name: str, value: Value) -> None:
    if isinstance(value, str) and not value:
        raise invalid_value(name, value, "String must be non-empty")


def gzip_level(name: str, value: Value) -> None:
    """1 (fastest) to 9 (smallest), or -1 for the codec's default."""
    if value != -1 and (not isinstance(value, int) or not 1 <= value <= 9):
        raise invalid_value(name, value, "Value must be between 1 and 9 or equal to -1")


def list_of(*allowed: str, empty: bool = True) -> Validator:
    """A list without empty elements. `allowed`, unless it is empty, are the valid elements."""

    def check(name: str, value: Value) -> None:
        if value is None:
            return
        if not isinstance(value, tuple):
            raise invalid_value(name, value, "Expected a comma separated list.")
        if not value and not empty:
            valid = f"[{', '.join(allowed)}]" if allowed else "any non-empty value"
            raise ConfigError(f"Configuration '{name}' must not be empty. Valid values include: {valid}")
        for part in value:
            if not part:
                raise ConfigError(f"Configuration '{name}' values must not be empty.")
            if allowed:
                one_of(*allowed)(name, part)

    return check


def distinct_tags(name: str, value: Value) -> None:
    """A list of client tags without empty elements or duplicates."""
    list_of()(name, value)
    if isinstance(value, tuple) and len(set(value)) < len(value):
        raise ConfigError(f"{name} must not contain duplicate tag keys.")


def non_empty_list_of(*allowed: str) -> Validator:
    return list_of(*allowed, empty=False)


def throttled_replicas(name: str, value: Value) -> None:
    """The list ("*",), or partition:broker pairs."""
    if not isinstance(value, tuple) or "".join(value) == "*":
        return
    if not all(_PAIR.fullmatch(part) for part in value):
        raise invalid_value(
            name,
            value,
            f"{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        )


def share_offset_reset(name: str, value: Value) -> None:
    """earliest, latest, or by_duration: followed by a positive ISO 8601 duration (KIP-1106)."""
    text = value if isinstance(value, str) else ""
    if text in ("earliest", "latest") or _BY_DURATION.fullmatch(text):
        return
    raise invalid_value(
        name,
        value,
        f"Invalid value `{text}` for configuration {name}. "
        "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
    )


def compression_codec(name: str, value: Value) -> None:
    """The number of a codec in the attributes of record batches."""
    if value not in range(5):
        raise ConfigError(f"Unknown compression type id: {format_value(value)}")


def host_limits(name: str, value: Value) -> None:
    """Comma-separated `host:number` pairs."""
    key_value_pairs(name, value)
    for part in _parts(value):
        number = part.rpartition(":")[2].strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,10}", number):
            raise ConfigError(f'For input string: "{number}"')


def key_value_pairs(name: str, value: Value) -> None:
    """Comma-separated `key:value` pairs. The error message is a Java exception's."""
    for part in _parts(value):
        if ":" not in part:
            raise ConfigError(f"Error parsing configuration property '{name}': begin 0, end -1, length {len(part)}")


def _parts(value: Value) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else []


def quorum_voters(name: str, value: Value) -> None:
    for part in value if isinstance(value, tuple) else ():
        if not re.fullmatch(r"-?\d+@.+:\d+", part):
            raise ConfigError(
                f"Invalid configuration value for {name}. Each entry should be in the form `{{id}}@{{host}}:{{port}}`."
            )


def bootstrap_servers(name: str, value: Value) -> None:
    for part in value if isinstance(value, tuple) else ():
        if not re.fullmatch(r".+:\d+", part):
            raise ConfigError(
                f"Failed to parse host name from {part} for the configuration {name}. "
                'Each entry should be in the form "{host}:{port}"'
            )


def metrics_interval(name: str, value: Value) -> None:
    if isinstance(value, int) and not 100 <= value <= 3_600_000:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {value} for {name}, interval must be between 100 and 3600000 (1 hour)",
        )


def client_match_patterns(name: str, value: Value) -> None:
    """A list of `attribute=regular expression` entries."""
    list_of()(name, value)
    for part in value if isinstance(value, tuple) else ():
        attribute, _, pattern = part.partition("=")
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            pattern = ""
        if not pattern or "=" in pattern or attribute.strip() not in _CLIENT_ATTRIBUTES:
            raise ConfigError(f"Illegal client matching pattern: {part}")
