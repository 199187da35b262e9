"""ConfigKey: the definition of one config, as in Kafka's ConfigDef; and the resources that have configs.

A ConfigDef is a table of ConfigKeys by name. The tables are in kbroker/config/definitions.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

from kbroker.config.values import PASSWORD, STRING, ConfigError, ConfigType, Value, parse_value

# Called with a config's name and value; raises ConfigError if the value is invalid.
Validator = Callable[[str, Value], None]


class Importance(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HIGH, MEDIUM, LOW = Importance


class UpdateMode(StrEnum):
    """Whether a broker config can be altered while the broker runs, and for which brokers (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


READ_ONLY, PER_BROKER, CLUSTER_WIDE = UpdateMode


class NoEffect(StrEnum):
    """The reasons why a config that kbroker accepts has no effect. docs/configuration.md has them in this order.

    Each text completes the sentence "<config> is accepted, but has no effect: ...".

    NO_PROTECTION is that of configs whose user relies on a protection: any value but the default is refused. Those with
    NO_SECURITY only say how such a protection works.
    """

    JAVA_CLASS = "kbroker does not load Java classes"
    NO_PROTECTION = "kbroker has no delegation tokens or Kerberos yet"
    NO_SECURITY = "it is part of Java's TLS or OAUTHBEARER, Kerberos or delegation tokens, which kbroker does not have"
    BROKER_SECRET = "brokers prove to each other that they know the cluster's secret, instead of a login with SASL"
    NO_TIERED_STORAGE = "kbroker has no tiered storage"
    ONE_SHARE_ASSIGNOR = "share groups have one assignor, simple"
    NO_TWO_PHASE_COMMIT = "no client can request it: that version of InitProducerId is not stable yet (KIP-939)"
    NO_QUORUM = "kbroker has no metadata quorum"
    ONE_FETCHER = "one fetcher per leader fetches all partitions, without threads"
    PROMETHEUS_METRICS = "kbroker's metrics are Prometheus counters, without samples or reporters"
    EVENT_LOOP = "one event loop serves all requests, without a pool of threads"
    REQUEST_TIMEOUT = "the timeout of a request to another broker, such as request.timeout.ms, includes connecting"
    ONE_LOG_DIRECTORY = "a broker has one log directory"
    SYSTEM_BUFFERS = "the system adapts the buffers of connections between brokers"
    PURGATORY_NOT_PURGED = "a delayed request leaves the purgatory as soon as it completes"
    NO_REQUEST_QUEUE = "requests are handled as they are read, without a queue"
    NO_PREALLOCATION = "segments grow as they are written"
    LOG_START_WRITTEN_AT_ONCE = "log start offsets are checkpointed whenever they change"
    NO_CACHED_BUFFER = "the coordinators keep no buffer between two writes"


class BrokerSynonym(NamedTuple):
    """A broker config that is the default of a topic or group config.

    The broker's value times `factor` is the value in the unit of the topic config.
    """

    name: str
    factor: int = 1


class ConfigKey(NamedTuple):
    """One config.

    `default` is a parsed value, not text. `synonyms` are broker configs in order of precedence. `no_effect` is the
    reason why the config has no effect in kbroker; None for a config that takes effect.
    """

    name: str
    type: ConfigType
    default: Value
    validator: Validator | None
    importance: Importance
    update_mode: UpdateMode
    documentation: str
    synonyms: tuple[BrokerSynonym, ...] = ()
    no_effect: NoEffect | None = None

    @property
    def is_sensitive(self) -> bool:
        return self.type is PASSWORD

    def parse(self, text: str | None) -> Value:
        """Parse and validate a value. Raises ConfigError."""
        value = parse_value(self.name, self.type, text)
        if self.validator is not None:
            self.validator(self.name, value)
        # Duplicates in a list are dropped (KIP-1161).
        return tuple(dict.fromkeys(value)) if isinstance(value, tuple) and "" not in value else value


ConfigDef = Mapping[str, ConfigKey]


def config_def(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    """Return the keys by name, sorted by name."""
    return {key.name: key for key in sorted(keys)}


def parse_configs(definition: ConfigDef, texts: Mapping[str, str], resource: str) -> dict[str, Value]:
    """Parse the configs in `texts`. Raises ConfigError for an unknown name or an invalid value."""
    for name in texts:
        if name not in definition:
            raise ConfigError(f"Unknown {resource} config name: {name}")
    return {name: definition[name].parse(text) for name, text in texts.items()}


def broker_defaults(definition: ConfigDef, broker: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of a topic or group without overrides, from the values of the broker's configs.

    The value of each config is that of its first synonym that has one, converted to the config's unit, or else its own
    default.
    """
    values: dict[str, Value] = {}
    for name, key in definition.items():
        values[name] = key.default
        for synonym in key.synonyms:
            value = broker.get(synonym.name)
            if value is not None:
                # The default of streams.assignor.name is the first of a list.
                if key.type is STRING and isinstance(value, tuple):
                    value = value[0]
                values[name] = _scale(value, synonym.factor)
                break
    return values


def _scale(value: Value, factor: int) -> Value:
    # Negative numbers mean "no limit" in every unit.
    return value * factor if factor > 1 and isinstance(value, int) and value > 0 else value


class ConfigResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """`name` is a topic, a group, a subscription, or a broker id in digits; "" for the default of all brokers."""

    type: int
    name: str
