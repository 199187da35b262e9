"""Client metrics subscriptions: which clients push which metrics, how often (config resources of CLIENT_METRICS)."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.config.config_def import broker_defaults, parse_configs
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.values import ConfigError
from kbroker.coordinator.re2_pattern import NO_RE2, Re2Pattern
from protocol.records.checksum import crc32c

ALL_METRICS = "*"
DEFAULT_INTERVAL_MS = 300_000


class ClientAttributes(NamedTuple):
    """What is known about a client; the patterns of `match` name these fields."""

    client_instance_id: str
    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


# Those that identify a client on the metrics page. With its address there would be new series for each connection.
CLIENT_LABELS = ClientAttributes._fields[:4]


class MetricsSubscription:
    """One config resource. Raises ConfigError for a regular expression that RE2 does not accept."""

    __slots__ = ("interval_ms", "metrics", "patterns")

    def __init__(self, configs: Mapping[str, str]) -> None:
        texts = parse_configs(CLIENT_METRICS_CONFIGS, configs, "client metrics")
        values = broker_defaults(CLIENT_METRICS_CONFIGS, {}) | texts
        interval_ms, metrics, match = values["interval.ms"], values["metrics"], values["match"]
        assert isinstance(interval_ms, int)
        assert isinstance(metrics, tuple)
        assert isinstance(match, tuple)
        self.interval_ms = interval_ms
        self.metrics = metrics
        self.patterns: dict[str, Re2Pattern] = {}
        for part in match:
            attribute, _, pattern = part.partition("=")
            try:
                self.patterns[attribute.strip()] = Re2Pattern(pattern.strip())
            except KafkaError as error:
                reason = f": {NO_RE2}" if error.message == NO_RE2 else ""
                raise ConfigError(f"Illegal client matching pattern: {part}{reason}") from None

    def matches(self, client: ClientAttributes) -> bool:
        return all(pattern.matches(getattr(client, name)) for name, pattern in self.patterns.items())


class ClientSubscription(NamedTuple):
    """What one client pushes: all subscriptions that match it, in one. `id` changes with the rest."""

    id: int
    metrics: tuple[str, ...]
    push_interval_ms: int


def subscription_of(
    client_instance_id: bytes, client: ClientAttributes, subscriptions: Iterable[MetricsSubscription]
) -> ClientSubscription:
    metrics: set[str] = set()
    push_interval_ms = DEFAULT_INTERVAL_MS
    for subscription in subscriptions:
        if subscription.matches(client):
            metrics.update(subscription.metrics)
            push_interval_ms = min(push_interval_ms, subscription.interval_ms)
    requested = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
    return ClientSubscription(
        _subscription_id(client_instance_id, requested, push_interval_ms), requested, push_interval_ms
    )


def _subscription_id(client_instance_id: bytes, metrics: tuple[str, ...], push_interval_ms: int) -> int:
    """Return the id as Kafka computes it, so that all brokers agree on it: the order of several metrics is ours."""
    checksum = crc32c(f"[{', '.join(metrics)}]{push_interval_ms}".encode(errors="replace"))
    high_low = int.from_bytes(client_instance_id[:8], "big") ^ int.from_bytes(client_instance_id[8:], "big")
    unsigned = checksum ^ (high_low >> 32) ^ (high_low & 0xFFFFFFFF)
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned
