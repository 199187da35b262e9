"""The broker's configuration: what was given, what was altered since, and the typed view of the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kbroker.config.broker.consistency import check_broker
from kbroker.config.broker.listener_prefix import strip_listener_prefix
from kbroker.config.broker.listeners import (
    Endpoint,
    check_security_protocols,
    exclude_controller_listeners,
    parse_endpoints,
    resolve_advertised_listeners,
)
from kbroker.config.config_def import ConfigDef, ConfigKey
from kbroker.config.definitions.broker import BROKER_CONFIGS, DYNAMIC_ONLY
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.inherit import inherit_broker_values
from kbroker.config.values import ConfigError, Value

Texts = Mapping[str, str]


@dataclass(slots=True, frozen=True, kw_only=True)
class BrokerConfig:
    """Effective values. Replaced when dynamic configs change, never changed.

    An attribute is a config's name with underscores. Only configs that code reads have one; `get` has them
    all. `static` is what the broker was started with; `cluster` and `own` are the dynamic configs of all
    brokers and of this one, as text. `topic_defaults` are the values of topics without overrides. Times are
    in the unit that the name ends with.
    """

    static: Texts
    cluster: Texts
    own: Texts
    values: Mapping[str, Value] = field(repr=False, compare=False)
    topic_defaults: Mapping[str, Value] = field(repr=False, compare=False)

    listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...]
    log_dirs: tuple[str, ...]

    add_partitions_to_txn_retry_backoff_max_ms: int
    add_partitions_to_txn_retry_backoff_ms: int
    auto_create_topics_enable: bool
    background_threads: int
    broker_rack: str | None
    connections_max_idle_ms: int
    default_replication_factor: int
    delete_topic_enable: bool
    fetch_max_bytes: int
    group_coordinator_append_linger_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    kbroker_log_format: str
    kbroker_metrics_listener: str
    kbroker_record_validation: str
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
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    request_timeout_ms: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
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
    def load(cls, static: Texts | None = None) -> "BrokerConfig":
        """From what the user set, by Kafka's property names. Raises ConfigError, one sentence."""
        given = {name: text.strip() for name, text in (static or {}).items()}
        config = _effective(cls, given, {}, {})
        check_broker(config.values)
        return config

    def with_dynamic(self, cluster: Texts, own: Texts) -> "BrokerConfig":
        """The same broker with other dynamic configs. Raises ConfigError and leaves this one as it is."""
        config = _effective(type(self), self.static, cluster, own)
        check_broker(config.values)
        return config

    def with_stored(self, cluster: Texts, own: Texts) -> tuple["BrokerConfig", list[str]]:
        """As with_dynamic, for what was stored earlier, perhaps beside another static configuration.

        What does not fit is left out; the second part has a sentence for each such config.
        """
        try:
            return self.with_dynamic(cluster, own), []
        except ConfigError:
            pass
        config = self.with_dynamic({}, {})
        complaints = []
        for name, text, every in [(*item, True) for item in cluster.items()] + [(*item, False) for item in own.items()]:
            try:
                if every:
                    config = config.with_dynamic({**config.cluster, name: text}, config.own)
                else:
                    config = config.with_dynamic(config.cluster, {**config.own, name: text})
            except ConfigError as wrong:
                complaints.append(f"The dynamic config {name} is left out: {wrong}")
        return config, complaints

    def least(self, name: str) -> int:
        """The smaller of a limit of the whole broker and its listener's, of which there is one."""
        limits = (self.values[name], self.values.get(f"listener.name.{self.listeners[0].name.lower()}.{name}"))
        return min(limit for limit in limits if isinstance(limit, int))

    def get(self, name: str) -> Value:
        """Any broker config's value. Raises KeyError for a name that is none."""
        return self.values[name]


_GIVEN = {"static", "cluster", "own", "values", "topic_defaults"}
_DERIVED = {"listeners", "advertised_listeners", "log_dirs"}
_ATTRIBUTES = tuple((f.name, f.name.replace("_", ".")) for f in fields(BrokerConfig) if f.name not in _GIVEN | _DERIVED)
_DEFAULTS: Mapping[str, Value] = {name: row.default for name, row in BROKER_CONFIGS.items()}


def _effective(cls: type[BrokerConfig], static: Texts, cluster: Texts, own: Texts) -> BrokerConfig:
    values = dict(_DEFAULTS)
    static = _with_ids(static)
    for texts in (static, cluster, own):
        for name, text in texts.items():
            values[name] = broker_config_key(name).parse(text)
    listeners, advertised_listeners = _endpoints(values)
    typed: dict[str, Any] = {attribute: values[name] for attribute, name in _ATTRIBUTES}
    return cls(
        static=static,
        cluster=cluster,
        own=own,
        values=values,
        topic_defaults=inherit_broker_values(ALL_TOPIC_CONFIGS, values),
        listeners=listeners,
        advertised_listeners=advertised_listeners,
        log_dirs=_strings(values["log.dirs"]) or _strings(values["log.dir"]),
        **typed,
    )


def _with_ids(static: Texts) -> Texts:
    """node.id and broker.id are one number under two names; either may be given."""
    given = {name: static[name].strip() for name in ("node.id", "broker.id") if name in static}
    numbers = {broker_config_key(name).parse(text) for name, text in given.items()}
    if len(numbers) > 1:
        raise ConfigError("You must set `node.id` to the same value as `broker.id`.")
    if not given:
        return static
    _, node_id = given.popitem()
    return {**static, "node.id": node_id, "broker.id": node_id}


def _endpoints(values: Mapping[str, Value]) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    controllers = _strings(values["controller.listener.names"])

    def parsed(name: str) -> tuple[Endpoint, ...]:
        return exclude_controller_listeners(parse_endpoints(name, _strings(values[name])), controllers)

    listeners = parsed("listeners")
    if not listeners or "broker" not in _strings(values["process.roles"]):
        raise ConfigError("This is a broker: process.roles must have broker, and listeners one that clients use")
    check_security_protocols(listeners, str(values["listener.security.protocol.map"]))
    configured = None if values["advertised.listeners"] is None else parsed("advertised.listeners")
    return listeners, resolve_advertised_listeners(listeners, configured)


def _strings(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def broker_config_key(name: str) -> ConfigKey:
    """The row of a broker config, also of one under a listener's prefix. Raises ConfigError if unknown."""
    rows: ConfigDef = BROKER_CONFIGS
    found = rows.get(name) or DYNAMIC_ONLY.get(name) or rows.get(strip_listener_prefix(name))
    if found is None:
        import difflib  # costs the start of every broker otherwise

        near = difflib.get_close_matches(name, rows, n=1, cutoff=0.8)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"Unknown broker config name: {name}{hint}")
    return found._replace(name=name)
