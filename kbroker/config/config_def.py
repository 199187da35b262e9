"""What a config is: one row with name, type, default, validator, importance, dynamic mode, documentation."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kbroker.config.values import PASSWORD, ConfigError, ConfigType, Value, parse_value

Validator = Callable[[str, Value], None]


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HIGH, MEDIUM, LOW = Importance


class UpdateMode(StrEnum):
    """How a broker config may be altered while the broker runs; see KIP-226."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


READ_ONLY, PER_BROKER, CLUSTER_WIDE = UpdateMode


class BrokerSynonym(NamedTuple):
    """A broker config that gives a topic config its value; `factor` turns its unit into the topic's."""

    name: str
    factor: int = 1


class ConfigKey(NamedTuple):
    """One config.

    `default` is a value, not text. `check` raises ConfigError for a value out of range. `synonyms` are the
    broker configs behind a topic or group config, the strongest first.
    """

    name: str
    type: ConfigType
    default: Value
    check: Validator | None
    importance: Importance
    mode: UpdateMode
    doc: str
    synonyms: tuple[BrokerSynonym, ...] = ()

    @property
    def sensitive(self) -> bool:
        return self.type is PASSWORD

    def parse(self, text: str | None) -> Value:
        """Parses and validates. Raises ConfigError."""
        value = parse_value(self.name, self.type, text)
        if self.check is not None:
            self.check(self.name, value)
        # What a list has twice counts once (KIP-1161).
        return tuple(dict.fromkeys(value)) if isinstance(value, tuple) and "" not in value else value


ConfigDef = Mapping[str, ConfigKey]


def config_def(rows: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """By name, sorted by name, which is the order in which Kafka's documentation lists them."""
    return {row.name: row for row in sorted(rows)}


def parse_configs(rows: ConfigDef, texts: Mapping[str, str], what: str) -> dict[str, Value]:
    """Only the given configs, parsed. Raises ConfigError for an unknown name or a bad value."""
    for name in texts:
        if name not in rows:
            raise ConfigError(f"Unknown {what} config name: {name}")
    return {name: rows[name].parse(text) for name, text in texts.items()}
