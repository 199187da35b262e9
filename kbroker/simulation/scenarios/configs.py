"""Configs of the broker and its topics, drawn from a seed, and lower limits for the time of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from kbroker.queues.dedup import key_state
from kbroker.queues.delay import delivery, pending_records, snapshots, stored_records
from kbroker.replica import assigned_partitions
from kbroker.replica.fetch import fetch_manager, fetch_session
from kbroker.replica.produce import marker_appends
from kbroker.runtime import turns
from kbroker.server import connection, large_request
from protocol.fast import produce

KIB = 1 << 10
# The racks of brokers and clients.
RACKS = ("a", "b")
RACK_AWARE = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


def draw_broker_configs(random: Random) -> dict[str, str]:
    """Draw configs of the broker: frequent flushes, checkpoints and retention checks, small caches."""
    return {
        "offsets.topic.num.partitions": str(random.choice((1, 1, 3))),
        "group.initial.rebalance.delay.ms": str(random.choice((0, 0, 100))),
        "log.flush.offset.checkpoint.interval.ms": str(random.choice((100, 1_000, 60_000))),
        "log.flush.scheduler.interval.ms": str(random.choice((50, 1_000, 1_000_000))),
        "log.retention.check.interval.ms": str(random.choice((500, 300_000))),
        "log.cleaner.backoff.ms": str(random.choice((100, 15_000))),
        "num.recovery.threads.per.data.dir": str(random.choice((1, 2))),
        "max.incremental.fetch.session.cache.slots": str(random.choice((0, 2, 1_000))),
        "offsets.topic.segment.bytes": str(random.choice((1 << 20, 100 << 20))),
    }


def draw_cluster_configs(random: Random, replication_factor: int) -> dict[str, str]:
    """Draw configs of brokers that replicate: lags and intervals from short to Kafka's defaults, small responses."""
    min_isr = str(replication_factor - 1)
    return {
        "default.replication.factor": str(replication_factor),
        "min.insync.replicas": min_isr,
        "offsets.topic.replication.factor": str(replication_factor),
        "transaction.state.log.replication.factor": str(replication_factor),
        "transaction.state.log.min.isr": min_isr,
        "replica.lag.time.max.ms": str(random.choice((1_000, 3_000, 10_000))),
        "replica.fetch.wait.max.ms": str(random.choice((50, 500))),
        "replica.fetch.max.bytes": str(random.choice((2 * KIB, 1 << 20))),
        "replica.fetch.response.max.bytes": str(random.choice((4 * KIB, 10 << 20))),
        "replica.fetch.backoff.ms": str(random.choice((50, 1_000))),
        "replica.high.watermark.checkpoint.interval.ms": str(random.choice((100, 1_000, 5_000))),
        "auto.leader.rebalance.enable": random.choice(("true", "false")),
        "leader.imbalance.check.interval.seconds": str(random.choice((1, 300))),
    }


def draw_healing_configs(random: Random) -> dict[str, str]:
    """Draw configs of self-healing."""
    return {
        "kbroker.replica.rebuild.after.ms": str(random.choice((1_000, 3_000))),
        "kbroker.replica.rebuild.throttled.rate": str(random.choice((-1, 1_000_000))),
    }


def draw_queue_configs(random: Random) -> dict[str, str]:
    """Draw configs of brokers whose topics use the features of queues."""
    return {"kbroker.retired.partition.idle.ms": str(random.choice((0, 500, 3_000)))}


def draw_topic_configs(random: Random, *, durable: bool) -> dict[str, str]:
    """Draw configs of a topic that clients use: small segments, unusual flush settings."""
    configs = {
        "internal.segment.bytes": str(random.choice((2, 16, 16, 100, 1024)) * KIB),
        "index.interval.bytes": str(random.choice((0, 500, 4096))),
        "segment.ms": str(random.choice((500, 5_000, 604_800_000))),
        "file.delete.delay.ms": str(random.choice((0, 1_000, 60_000))),
        "flush.messages": str(random.choice((2, 20, 1 << 62))),
        "flush.ms": str(random.choice((20, 1_000, 1 << 62))),
        "compression.type": random.choice(("producer", "producer", "producer", "lz4", "uncompressed")),
        "max.message.bytes": str(1 << 20),
    }
    if durable:
        configs["flush.before.ack"] = "true"
    return configs


def draw_compaction_configs(random: Random) -> dict[str, str]:
    """Draw configs of a topic that is compacted often."""
    return {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": random.choice(("0", "0.5")),
        "max.compaction.lag.ms": str(random.choice((500, 5_000))),
        "internal.segment.bytes": str(random.choice((2, 16)) * KIB),
        "file.delete.delay.ms": "1000",
    }


def draw_transaction_configs(random: Random) -> dict[str, str]:
    """Draw configs of the broker for its transaction coordinator."""
    return {
        "transaction.state.log.num.partitions": str(random.choice((1, 1, 3))),
        "transaction.state.log.segment.bytes": str(random.choice((1 << 20, 100 << 20))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(random.choice((100, 1_000, 10_000))),
    }


def draw_internal_topic_configs(random: Random, *, durable: bool) -> dict[str, str]:
    """Draw configs of an internal topic, which half of the time is compacted often."""
    configs = {"flush.before.ack": "true"} if durable else {}
    if random.random() < 0.5:
        configs["internal.segment.bytes"] = str(random.choice((1, 4, 16)) * KIB)
        configs["min.cleanable.dirty.ratio"] = random.choice(("0", "0.5"))
        configs["file.delete.delay.ms"] = "1000"
    return configs


# Lower limits, which are constants: a run has too few records, partitions and elements for those of a broker.

# Snapshots of pending records and idempotency keys after a few records instead of thousands.
_SNAPSHOTS = (
    (snapshots, "WORTHWHILE_OFFSETS", 20),
    (delivery, "SNAPSHOT_INTERVAL_MS", 500),
    (snapshots, "INTERVAL_S", 0.5),
    (snapshots, "MIN_BYTES", 4096),
    (key_state, "SNAPSHOT_BYTES", 4096),
)
# Records are read ahead in several parts, from few batches at a time, of which some do not fit.
_READ_AHEAD = (
    (pending_records, "CHUNK_RECORDS", 8),
    (stored_records, "FIRST_WINDOW", 2),
    (stored_records, "MAX_WINDOW", 16),
    (stored_records, "MAX_READY_BYTES", 6_000),
    (stored_records, "READ_BYTES", 512),
    (stored_records, "SMALL_READ_BYTES", 64),
    (stored_records, "NEIGHBOURS", 2),
    (stored_records, "NEAR_OFFSETS", 8),
)
# Almost all requests, and changes of several partitions, are handled in turns of one element.
_TURNS = (
    (connection, "LARGE_REQUEST_BYTES", 32),
    (large_request, "SMALL_RESPONSE_BYTES", 0),
    (produce, "MAX_ELEMENTS_AT_ONCE", 2),
    (turns, "TURN_ELEMENTS", 1),
    (fetch_session, "MANY_PARTITIONS", 1),
    (fetch_manager, "MANY_PARTITIONS", 1),
    (marker_appends, "PARTITIONS_AT_ONCE", 1),
    (assigned_partitions, "CLOSED_AT_ONCE", 1),
)


@contextmanager
def small_limits(*, small_slices: bool) -> Iterator[None]:
    limits = _SNAPSHOTS + _READ_AHEAD + (_TURNS if small_slices else ())
    before = [(module, name, getattr(module, name)) for module, name, _ in limits]
    for module, name, value in limits:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
