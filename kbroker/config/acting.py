"""Which configs have an effect in kbroker now. The others are accepted, kept and described, and say so.

Whoever makes a config act adds it here; README's limits and `doctor` are made from what is missing.
"""

from collections.abc import Mapping

from kbroker.config.broker.broker_config import broker_config_key
from kbroker.config.broker.listener_prefix import strip_listener_prefix
from kbroker.config.broker.listeners import exclude_controller_listeners, parse_endpoints
from kbroker.config.config_def import ConfigKey
from kbroker.config.definitions.broker import BROKER_CONFIGS, DYNAMIC_ONLY
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.values import format_value

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32

ACTING_TOPIC_CONFIGS = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.before.ack",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "internal.segment.bytes",
        "kbroker.record.validation",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)

# Besides those that stand behind an acting topic config.
_ACTING_BROKER_CONFIGS = frozenset(
    {
        "add.partitions.to.txn.retry.backoff.max.ms",
        "add.partitions.to.txn.retry.backoff.ms",
        "advertised.listeners",
        "auto.create.topics.enable",
        "broker.id",
        "broker.rack",
        "connections.max.idle.ms",
        "controller.listener.names",
        "cordoned.log.dirs",
        "default.replication.factor",
        "delete.topic.enable",
        "fetch.max.bytes",
        "group.coordinator.append.linger.ms",
        "group.initial.rebalance.delay.ms",
        "group.max.session.timeout.ms",
        "group.max.size",
        "group.min.session.timeout.ms",
        "kbroker.log.format",
        "kbroker.metrics.listener",
        "listener.security.protocol.map",
        "listeners",
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.enable",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "log.dir",
        "log.dirs",
        "log.flush.offset.checkpoint.interval.ms",
        "log.retention.check.interval.ms",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "max.incremental.fetch.session.cache.slots",
        "max.request.partition.size.limit",
        "node.id",
        "num.io.threads",
        "num.partitions",
        "num.recovery.threads.per.data.dir",
        "offset.metadata.max.bytes",
        "offsets.commit.timeout.ms",
        "offsets.load.buffer.size",
        "offsets.retention.check.interval.ms",
        "offsets.retention.minutes",
        "offsets.topic.compression.codec",
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes",
        "process.roles",
        "producer.id.expiration.ms",
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.request.max.bytes",
        "socket.send.buffer.bytes",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.max.timeout.ms",
        "transaction.partition.verification.enable",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "transaction.state.log.load.buffer.size",
        "transaction.state.log.min.isr",
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "transaction.state.log.segment.bytes",
        "transactional.id.expiration.ms",
    }
)
ACTING_BROKER_CONFIGS = _ACTING_BROKER_CONFIGS | {
    synonym.name for name in ACTING_TOPIC_CONFIGS for synonym in ALL_TOPIC_CONFIGS[name].synonyms
}

# Those that act under a listener's name as well.
PER_LISTENER = frozenset({"max.connections", "max.connection.creation.rate"})

_NONE: frozenset[str] = frozenset()
_ACTING = {
    TOPIC: ACTING_TOPIC_CONFIGS,
    BROKER: ACTING_BROKER_CONFIGS,
    CLIENT_METRICS: _NONE,
    GROUP: _NONE,
}
_ROWS = {TOPIC: ALL_TOPIC_CONFIGS, CLIENT_METRICS: CLIENT_METRICS_CONFIGS, GROUP: GROUP_CONFIGS}


def without_effect(kind: int, texts: Mapping[str, str]) -> list[str]:
    """A sentence for each config of a resource type that is set to other than its default in vain."""
    sentences = _controller_listeners(texts) if kind == BROKER else []
    for name, text in texts.items():
        row = _row(kind, name)
        value = row.parse(text)
        shown = name if row.sensitive else f"{name}={format_value(value)}"
        if value != row.default and not acts(kind, name):
            from kbroker.config.inert import why_inert  # costs the start of every broker otherwise

            sentences.append(f"{shown} is accepted, but has no effect: {why_inert(name)}")
    return sentences


def acts(kind: int, name: str) -> bool:
    return name in _ACTING[kind] or (
        kind == BROKER and name != strip_listener_prefix(name) and strip_listener_prefix(name) in PER_LISTENER
    )


def inert_rows(kind: int) -> list[ConfigKey]:
    """The configs of a resource type that have no effect."""
    rows = BROKER_CONFIGS | DYNAMIC_ONLY if kind == BROKER else _ROWS[kind]
    return [row for row in rows.values() if not acts(kind, row.name)]


def _controller_listeners(texts: Mapping[str, str]) -> list[str]:
    """Of listeners that are left out, see without_controllers."""
    given = parse_endpoints("listeners", texts.get("listeners", "").split(",") if "listeners" in texts else ())
    controllers = texts.get("controller.listener.names", "CONTROLLER").split(",")
    kept = exclude_controller_listeners(given, [name.strip() for name in controllers])
    return [
        f"the listener {endpoint} is not opened: kbroker has no metadata quorum"
        for endpoint in given
        if endpoint not in kept
    ]


def _row(kind: int, name: str) -> ConfigKey:
    return broker_config_key(name) if kind == BROKER else _ROWS[kind][name]
