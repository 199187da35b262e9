"""BrokerConfig: the effective configuration of a broker, from its static and its dynamic configs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kbroker.config.broker.consistency import validate_broker_configs
from kbroker.config.broker.listeners import WILDCARDS, Endpoint, parse_listeners
from kbroker.config.broker.security import (
    NO_SECURITY,
    AuthorizerSettings,
    ListenerSecurity,
    authorizer_settings,
    listener_security,
)
from kbroker.config.config_def import ConfigKey, NoEffect, broker_defaults
from kbroker.config.definitions.broker import BROKER_CONFIGS, DYNAMIC_ONLY, strip_listener_prefix
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.group_config import GroupConfig
from kbroker.config.topic_config import TopicConfig
from kbroker.config.validators import parse_host_port
from kbroker.config.values import ConfigError, Value, format_value

ConfigTexts = Mapping[str, str]
# Each heartbeat asks for the config of its group. Groups with the same overrides share one.
MAX_KNOWN_GROUP_CONFIGS = 100


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class BrokerConfig:
    """Effective values. It is immutable: with_dynamic returns a new configuration.

    An attribute is a config's name with underscores. Configs that no code reads have no attribute; `get` returns any of
    them. Times are in the unit that the name ends with, sizes in bytes.

    `static_configs` are the configs that the broker was started with. `dynamic_default_configs` are the dynamic configs
    of all brokers, `dynamic_broker_configs` those of this broker; they take precedence in this order.
    `topic_defaults` are the configs of a topic without overrides, `group_defaults` those of a group.
    """

    # Not in the representation: they have passwords.
    static_configs: ConfigTexts = field(repr=False)
    dynamic_default_configs: ConfigTexts = field(repr=False)
    dynamic_broker_configs: ConfigTexts = field(repr=False)
    values: Mapping[str, Value] = field(repr=False, compare=False)
    topic_defaults: TopicConfig = field(repr=False)
    group_defaults: GroupConfig = field(repr=False, compare=False)
    security: Mapping[str, ListenerSecurity] = field(repr=False)
    authorizer: AuthorizerSettings | None
    # Those that `group_config` has returned, by overrides.
    known_group_configs: dict[tuple[tuple[str, str], ...], GroupConfig] = field(repr=False, compare=False)

    listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...]
    inter_broker_listener_name: str
    log_dirs: tuple[str, ...]

    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    background_threads: int
    broker_rack: str | None
    connections_max_idle_ms: int
    controlled_shutdown_enable: bool
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    default_replication_factor: int
    delete_topic_enable: bool
    errors_deadletterqueue_auto_create_topics_enable: bool
    errors_deadletterqueue_topic_name_prefix: str
    fetch_max_bytes: int
    group_consumer_assignors: tuple[str, ...]
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_coordinator_append_linger_ms: int
    group_coordinator_rebalance_protocols: tuple[str, ...]
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    group_share_max_share_sessions: int
    group_share_max_size: int
    group_streams_assignors: tuple[str, ...]
    group_streams_max_size: int
    kbroker_audit_log: str
    kbroker_audit_log_files: int
    kbroker_audit_log_max_bytes: int
    kbroker_inter_broker_listener: str
    kbroker_log_format: str
    kbroker_metrics_listener: str
    kbroker_metrics_otlp: bool
    kbroker_record_validation: str
    kbroker_retired_partition_idle_ms: int
    leader_imbalance_check_interval_seconds: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    message_max_bytes: int
    node_id: int
    num_io_threads: int
    num_partitions: int
    num_recovery_threads_per_data_dir: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_load_buffer_size: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    producer_id_expiration_ms: int
    queued_max_request_bytes: int
    queued_max_requests: int
    quota_window_num: int
    quota_window_size_seconds: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    replica_socket_timeout_ms: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    request_timeout_ms: int
    share_coordinator_append_linger_ms: int
    share_coordinator_load_buffer_size: int
    share_coordinator_snapshot_update_records_per_snapshot: int
    share_coordinator_state_topic_compression_codec: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    share_coordinator_write_timeout_ms: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    telemetry_max_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_load_buffer_size: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int

    @classmethod
    def load(cls, static_configs: ConfigTexts | None = None) -> "BrokerConfig":
        """Create the configuration from the configs that are set at startup. Raises ConfigError."""
        stripped = {name: text.strip() for name, text in (static_configs or {}).items()}
        return _build(cls, stripped, {}, {})

    def with_dynamic(self, default_configs: ConfigTexts, broker_configs: ConfigTexts) -> "BrokerConfig":
        """Return this configuration with other dynamic configs. Raises ConfigError if they are invalid."""
        return _build(type(self), self.static_configs, default_configs, broker_configs)

    def with_stored_dynamic(
        self, default_configs: ConfigTexts, broker_configs: ConfigTexts
    ) -> tuple["BrokerConfig", list[str]]:
        """Like with_dynamic, but without invalid configs. Also returns an error message for each of these.

        Stored configs can be invalid because they were set under other static configs.
        """
        try:
            return self.with_dynamic(default_configs, broker_configs), []
        except ConfigError:
            pass
        config = self.with_dynamic({}, {})
        errors = []
        for name, text in default_configs.items():
            try:
                config = config.with_dynamic({**config.dynamic_default_configs, name: text}, {})
            except ConfigError as error:
                errors.append(_ignored(name, error))
        for name, text in broker_configs.items():
            try:
                config = config.with_dynamic(
                    config.dynamic_default_configs, {**config.dynamic_broker_configs, name: text}
                )
            except ConfigError as error:
                errors.append(_ignored(name, error))
        return config, errors

    @property
    def inter_broker_listener(self) -> tuple[Endpoint, str]:
        """The listener for other brokers, and the host at which they reach it.

        The default is a free port on the host of the listener that inter.broker.listener.name names. An address on
        every interface is reached at the host that this listener advertises.
        """
        name = self.inter_broker_listener_name
        bound, advertised = (
            next(endpoint for endpoint in endpoints if endpoint.name == name)
            for endpoints in (self.listeners, self.advertised_listeners)
        )
        host, port = parse_host_port(self.kbroker_inter_broker_listener) or (bound.host, 0)
        return Endpoint(INTER_BROKER, host, port), advertised.host if host in WILDCARDS else host

    @property
    def leader_replication_throttled_rate(self) -> int:
        """Bytes per second."""
        return self._dynamic_only("leader.replication.throttled.rate")

    @property
    def follower_replication_throttled_rate(self) -> int:
        """Bytes per second."""
        return self._dynamic_only("follower.replication.throttled.rate")

    def _dynamic_only(self, name: str) -> int:
        value = self.values.get(name, DYNAMIC_ONLY[name].default)
        assert isinstance(value, int)
        return value

    def group_config(self, overrides: ConfigTexts) -> GroupConfig:
        """Return the configuration of a group with these overrides, which are valid."""
        if not overrides:
            return self.group_defaults
        key = tuple(overrides.items())
        if (known := self.known_group_configs.get(key)) is None:
            if len(self.known_group_configs) >= MAX_KNOWN_GROUP_CONFIGS:
                self.known_group_configs.clear()
            known = self.known_group_configs[key] = GroupConfig.of(overrides, self.values)
        return known

    def listener_limit(self, listener: str, name: str) -> int:
        """Return a limit of a listener (listener.name.<listener>.<name>), the broker's if the listener has none."""
        limit = self.values.get(f"listener.name.{listener.lower()}.{name}", self.values[name])
        assert isinstance(limit, int)
        return limit

    def listener_security(self, listener: str) -> ListenerSecurity:
        """Return how a listener protects its connections."""
        return self.security.get(listener, NO_SECURITY)

    def get(self, name: str) -> Value:
        """Return the value of any broker config. Raises KeyError for an unknown name."""
        return self.values[name]


INTER_BROKER = "INTERBROKER"
# Defaults of a broker whose cluster can have others: Kafka's own. A lone broker could not create these topics.
CLUSTER_DEFAULTS: Mapping[str, Value] = {
    "offsets.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
}

_INPUTS = {"static_configs", "dynamic_default_configs", "dynamic_broker_configs", "values", "topic_defaults"}
_COMPUTED = {
    "group_defaults", "known_group_configs", "security", "authorizer", "listeners", "advertised_listeners",
    "inter_broker_listener_name", "log_dirs",
}  # fmt: skip
_ATTRIBUTES = tuple(
    (f.name, f.name.replace("_", ".")) for f in fields(BrokerConfig) if f.name not in _INPUTS | _COMPUTED
)
_DEFAULTS: Mapping[str, Value] = {name: key.default for name, key in BROKER_CONFIGS.items()}
# Values of security configs that ask for no protection.
_NOTHING = ("", ())


def _ignored(name: str, error: ConfigError) -> str:
    return f"The dynamic config {name} is ignored: {error}"


def _no_protection(settings: Sequence[str]) -> ConfigError:
    """Return the error for security configs: their user relies on them, and the broker would serve everyone."""
    return ConfigError(
        f"cannot set {', '.join(settings)}: {NoEffect.NO_PROTECTION}, so every client that is served may do everything"
    )


def _build(
    cls: type[BrokerConfig], static_configs: ConfigTexts, default_configs: ConfigTexts, broker_configs: ConfigTexts
) -> BrokerConfig:
    values = dict(_DEFAULTS)
    if static_configs.get("zookeeper.connect"):
        values |= CLUSTER_DEFAULTS
    static_configs = _with_both_ids(static_configs)
    refused = []
    for texts in (static_configs, default_configs, broker_configs):
        for name, text in texts.items():
            key = broker_config_key(name)
            value = values[name] = key.parse(text)
            if key.no_effect is NoEffect.NO_PROTECTION and value != key.default and value not in _NOTHING:
                refused.append(name if key.is_sensitive else f"{name} to {format_value(value)}")
    if refused:
        raise _no_protection(refused)
    if "broker" not in _strings(values["process.roles"]):
        raise ConfigError("process.roles must contain broker")
    listeners, advertised_listeners, inter_broker_listener_name = parse_listeners(values)
    typed: dict[str, Any] = {attribute: values[name] for attribute, name in _ATTRIBUTES}
    config = cls(
        static_configs=static_configs,
        dynamic_default_configs=default_configs,
        dynamic_broker_configs=broker_configs,
        values=values,
        topic_defaults=TopicConfig.from_values(broker_defaults(ALL_TOPIC_CONFIGS, values)),
        group_defaults=GroupConfig.of({}, values),
        security=listener_security(values, listeners),
        authorizer=authorizer_settings(values),
        known_group_configs={},
        listeners=listeners,
        advertised_listeners=advertised_listeners,
        inter_broker_listener_name=inter_broker_listener_name,
        log_dirs=_strings(values["log.dirs"]) or _strings(values["log.dir"]),
        **typed,
    )
    validate_broker_configs(config.values)
    return config


def _with_both_ids(static_configs: ConfigTexts) -> ConfigTexts:
    """Set both node.id and broker.id, which are two names of one config."""
    names = [name for name in ("node.id", "broker.id") if name in static_configs]
    if not names:
        return static_configs
    if len({broker_config_key(name).parse(static_configs[name]) for name in names}) > 1:
        raise ConfigError(
            "`node.id` and `broker.id` must be set to the same value. `broker.id` is deprecated, please use `node.id` "
            "instead."
        )
    node_id = static_configs[names[-1]].strip()
    return {**static_configs, "node.id": node_id, "broker.id": node_id}


def _strings(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def broker_config_key(name: str) -> ConfigKey:
    """Return the definition of a broker config, whose name may have a listener prefix. Raises ConfigError."""
    key = BROKER_CONFIGS.get(name) or DYNAMIC_ONLY.get(name) or BROKER_CONFIGS.get(strip_listener_prefix(name))
    if key is None:
        import difflib  # imported here to keep the startup fast

        near = difflib.get_close_matches(name, BROKER_CONFIGS, n=1, cutoff=0.8)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"Unknown broker config name: {name}{hint}")
    return key._replace(name=name)
