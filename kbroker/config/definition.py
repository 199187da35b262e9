"""What a config is: one row with name, type, default, validator, importance, dynamic mode, documentation."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from kbroker.config.values import PASSWORD, ConfigError, Type, Value, parse

Check = Callable[[str, Value], None]


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HIGH, MEDIUM, LOW = Importance


class Mode(StrEnum):
    """How a broker config may be altered while the broker runs; see KIP-226."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


READ_ONLY, PER_BROKER, CLUSTER_WIDE = Mode


class Synonym(NamedTuple):
    """A broker config that gives a topic config its value; `factor` turns its unit into the topic's."""

    name: str
    factor: int = 1


class Row(NamedTuple):
    """One config.

    `default` is a value, not text. `check` raises ConfigError for a value out of range. `synonyms` are the
    broker configs behind a topic or group config, the strongest first.
    """

    name: str
    type: Type
    default: Value
    check: Check | None
    importance: Importance
    mode: Mode
    doc: str
    synonyms: tuple[Synonym, ...] = ()

    @property
    def sensitive(self) -> bool:
        return self.type is PASSWORD

    def parse(self, text: str | None) -> Value:
        """Parses and validates. Raises ConfigError."""
        value = parse(self.name, self.type, text)
        if self.check is not None:
            self.check(self.name, value)
        # What a list has twice counts once (KIP-1161).
        return tuple(dict.fromkeys(value)) if isinstance(value, tuple) and "" not in value else value


Table = Mapping[str, Row]


def table(rows: Iterable[Row]) -> dict[str, Row]:
    """By name, sorted by name, which is the order in which Kafka's documentation lists them."""
    return {row.name: row for row in sorted(rows)}


def parse_all(rows: Table, texts: Mapping[str, str], what: str) -> dict[str, Value]:
    """Only the given configs, parsed. Raises ConfigError for an unknown name or a bad value."""
    for name in texts:
        if name not in rows:
            raise ConfigError(f"Unknown {what} config name: {name}")
    return {name: rows[name].parse(text) for name, text in texts.items()}
