"""TopicConfig: the effective configuration of one topic, with typed attributes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kbroker.config.archive_configs import ARCHIVE_BEFORE_DELETE, ARCHIVE_EARLIEST, ARCHIVE_TABLE
from kbroker.config.config_def import parse_configs
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.queue_configs import VIEW_FILTER, VIEW_OF, check_view_configs, validate_retry_configs
from kbroker.config.values import ConfigError, Value


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicConfig:
    """Effective values: the topic's overrides, else the broker's values, else the defaults.

    Immutable. An attribute is a config's name with underscores. Configs that no code reads have no attribute; `get`
    returns any of them. Sizes are in bytes.
    """

    values: Mapping[str, Value] = field(repr=False, compare=False)
    # The pairs of these configs as sets: thousands of partitions may look for their pairs among thousands.
    throttled_leaders: frozenset[str] = field(repr=False, compare=False)
    throttled_followers: frozenset[str] = field(repr=False, compare=False)
    cleanup_policy: tuple[str, ...]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_before_ack: bool
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    kbroker_archive_before_delete: bool
    kbroker_archive_earliest: bool
    kbroker_archive_table: str
    kbroker_dedup_max_keys: int
    kbroker_dedup_window_ms: int
    kbroker_delay_enable: bool
    kbroker_delay_levels: str
    kbroker_delay_max_ms: int
    kbroker_record_validation: str
    kbroker_ttl_enable: bool
    kbroker_ttl_ms: int
    leader_replication_throttled_replicas: tuple[str, ...]
    max_compaction_lag_ms: int
    max_decompressed_message_bytes: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    replica_lag_max_messages: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @classmethod
    def of(cls, overrides: Mapping[str, str] | None = None, defaults: "TopicConfig | None" = None) -> "TopicConfig":
        """Return that of a topic with overrides, as text, and `BrokerConfig.topic_defaults`. Raises ConfigError."""
        if defaults is not None and not overrides:
            return defaults
        values = DEFAULTS if defaults is None else defaults.values
        return cls.from_values({**values, **parse_configs(ALL_TOPIC_CONFIGS, overrides or {}, "topic")})

    @classmethod
    def from_values(cls, values: Mapping[str, Value]) -> "TopicConfig":
        """Return that of a topic with these values of all configs."""
        typed: dict[str, Any] = {attribute: values[name] for attribute, name in _ATTRIBUTES}
        typed["segment_bytes"] = values["internal.segment.bytes"] or values["segment.bytes"]
        leaders = replica_pairs(typed["leader_replication_throttled_replicas"])
        followers = replica_pairs(typed["follower_replication_throttled_replicas"])
        return cls(values=values, throttled_leaders=leaders, throttled_followers=followers, **typed)

    def get(self, name: str) -> Value:
        """Return the value of any topic config. Raises KeyError for an unknown name."""
        return self.values[name]

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def has_delete_policy(self) -> bool:
        """Whether retention by age and size applies."""
        return "delete" in self.cleanup_policy


def replica_pairs(pairs: Iterable[str]) -> frozenset[str]:
    """Return pairs of a partition and a broker as partition:broker, the numbers without leading zeros."""
    return frozenset([":".join([number.lstrip("0") or "0" for number in pair.split(":")]) for pair in pairs if pair])


DEFAULTS: Mapping[str, Value] = {name: key.default for name, key in ALL_TOPIC_CONFIGS.items()}
_COMPUTED = {"values", "throttled_leaders", "throttled_followers"}
_ATTRIBUTES = tuple((f.name, f.name.replace("_", ".")) for f in fields(TopicConfig) if f.name not in _COMPUTED)


# What clients can ask of records, which those of the coordinators do not have.
_QUEUE_CONFIGS = {
    ARCHIVE_TABLE, "kbroker.dedup.window.ms", "kbroker.delay.enable", "kbroker.ttl.enable", "kbroker.ttl.ms", VIEW_OF
}  # fmt: skip


def check_internal_topic(name: str, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if the internal topic `name` has a config that it cannot have, unless it is the default."""
    refused = [
        config
        for config in sorted(_QUEUE_CONFIGS & overrides.keys())
        if ALL_TOPIC_CONFIGS[config].parse(overrides[config]) != DEFAULTS[config]
    ]
    if refused:
        raise ConfigError(f"{', '.join(refused)} cannot be set on the internal topic '{name}'")


def validate_topic_configs(overrides: Mapping[str, str], defaults: TopicConfig | None = None) -> None:
    """Validate a topic's overrides, each and in combination with the broker's values. Raises ConfigError."""
    config = TopicConfig.of(overrides, defaults)
    check_view_configs(overrides.keys(), str(config.get(VIEW_FILTER)))
    if config.get("remote.storage.enable"):
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    for name in (ARCHIVE_BEFORE_DELETE, ARCHIVE_EARLIEST):
        if config.get(name) and not config.kbroker_archive_table:
            raise ConfigError(f"{name} requires {ARCHIVE_TABLE}, which says where the archive of the topic is")
    if config.kbroker_dedup_window_ms and config.is_compacted:
        raise ConfigError("kbroker.dedup.window.ms cannot be combined with cleanup.policy=compact")
    if config.kbroker_delay_enable and config.kbroker_dedup_window_ms:
        raise ConfigError("kbroker.delay.enable cannot be combined with kbroker.dedup.window.ms")
    if config.kbroker_delay_enable and config.is_compacted:
        raise ConfigError("kbroker.delay.enable needs cleanup.policy=delete: compaction would remove delayed records")
    if (config.kbroker_ttl_enable or config.kbroker_ttl_ms) and config.is_compacted:
        raise ConfigError(
            "kbroker.ttl.enable and kbroker.ttl.ms need cleanup.policy=delete: the newest value of a key would be "
            "hidden without a tombstone"
        )
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    validate_retry_configs(config.values)
