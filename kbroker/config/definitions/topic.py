"""Topic configs."""

from kbroker.config import validators
from kbroker.config.config_def import (
    CLUSTER_WIDE,
    HIGH,
    MEDIUM,
    BrokerSynonym,
    ConfigKey,
    Importance,
    Validator,
    config_def,
)
from kbroker.config.validators import at_least, between, items, one_of
from kbroker.config.values import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    STRING,
    ConfigType,
    Value,
)

HOUR_MS = 3_600_000
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
VALIDATION_MODES = ("header", "full")


def _row(
    name: str,
    kind: ConfigType,
    default: Value,
    check: Validator | None,
    synonym: str | tuple[BrokerSynonym, ...],
    doc: str,
    importance: Importance = MEDIUM,
) -> ConfigKey:
    """`synonym` is the name of the broker config that gives this one its value, "" when none does."""
    synonyms = synonym if isinstance(synonym, tuple) else (BrokerSynonym(synonym),) if synonym else ()
    return ConfigKey(name, kind, default, check, importance, CLUSTER_WIDE, doc, synonyms)


# fmt: off
TOPIC_CONFIGS = config_def((
    _row("cleanup.policy", LIST, ("delete",), items("compact", "delete"), "log.cleanup.policy",
         "What becomes of old segments: delete drops them by age or size, compact keeps the last record of "
         "each key, both may be combined; an empty list keeps everything."),
    _row("compression.type", STRING, "producer", one_of(*CODECS), "compression.type",
         "Codec in which batches are stored. producer keeps them as they were sent; any other converts "
         "them."),
    _row("compression.gzip.level", INT, -1, validators.gzip_level, "compression.gzip.level",
         "Level for gzip when compression.type is gzip: 1 to 9, or -1 for the codec's default."),
    _row("compression.lz4.level", INT, 9, between(1, 17), "compression.lz4.level",
         "Level for lz4 when compression.type is lz4."),
    _row("compression.zstd.level", INT, 3, between(-131072, 22), "compression.zstd.level",
         "Level for zstd when compression.type is zstd."),
    _row("delete.retention.ms", LONG, 24 * HOUR_MS, at_least(0), "log.cleaner.delete.retention.ms",
         "How long a tombstone stays in a compacted topic. A reader from offset 0 must get to the end "
         "within it to see every deletion."),
    _row("file.delete.delay.ms", LONG, 60_000, at_least(0), "log.segment.delete.delay.ms",
         "How long the files of a deleted segment stay on disk under another name before they are removed."),
    _row("flush.before.ack", BOOLEAN, False, None, "",
         "kbroker's own. A write is acknowledged, and visible to consumers, only after it was synced to "
         "disk; writes that arrive together share one sync.", HIGH),
    _row("flush.messages", LONG, LONG_MAX, at_least(1), "log.flush.interval.messages",
         "Number of records after which the log is synced to disk. Left alone, the operating system "
         "decides."),
    _row("flush.ms", LONG, LONG_MAX, at_least(0),
         (BrokerSynonym("log.flush.interval.ms"), BrokerSynonym("log.flush.scheduler.interval.ms")),
         "Longest time that a record waits until the log is synced to disk. Left alone, the operating "
         "system decides."),
    _row("follower.replication.throttled.replicas", LIST, (), validators.throttled_replicas, "",
         "Replicas whose replication is throttled on the follower's side: partition:broker pairs, or * for "
         "all."),
    _row("index.interval.bytes", INT, 4096, at_least(0), "log.index.interval.bytes",
         "Bytes of log between two entries of the offset index. Smaller makes lookups shorter and indexes "
         "larger."),
    _row("kbroker.record.validation", STRING, "header", one_of(*VALIDATION_MODES),
         "kbroker.record.validation",
         "kbroker's own. header checks the header and the CRC of a produced batch; full walks its records "
         "too, as Apache Kafka does."),
    _row("leader.replication.throttled.replicas", LIST, (), validators.throttled_replicas, "",
         "Replicas whose replication is throttled on the leader's side: partition:broker pairs, or * for "
         "all."),
    _row("local.retention.bytes", LONG, -2, at_least(-2), "log.local.retention.bytes",
         "With tiered storage, size of a partition's local part above which its old segments go; -2 takes "
         "retention.bytes."),
    _row("local.retention.ms", LONG, -2, at_least(-2), "log.local.retention.ms",
         "With tiered storage, age at which a local segment goes; -2 takes retention.ms."),
    _row("max.compaction.lag.ms", LONG, LONG_MAX, at_least(1), "log.cleaner.max.compaction.lag.ms",
         "Longest time that a record of a compacted topic may wait before it is compacted."),
    _row("max.message.bytes", INT, 1_048_588, at_least(0), "message.max.bytes",
         "Largest record batch, as it is sent, that the topic takes."),
    _row("message.timestamp.after.max.ms", LONG, HOUR_MS, at_least(0), "log.message.timestamp.after.max.ms",
         "How far a record's timestamp may be ahead of the broker's clock; not for LogAppendTime."),
    _row("message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0),
         "log.message.timestamp.before.max.ms",
         "How far a record's timestamp may be behind the broker's clock; not for LogAppendTime."),
    _row("message.timestamp.type", STRING, "CreateTime", one_of(*TIMESTAMP_TYPES),
         "log.message.timestamp.type",
         "Whose clock a record's timestamp is: the producer's (CreateTime) or the broker's "
         "(LogAppendTime)."),
    _row("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1), "log.cleaner.min.cleanable.ratio",
         "Part of a compacted log that must be uncompacted before a compaction is worth its work."),
    _row("min.compaction.lag.ms", LONG, 0, at_least(0), "log.cleaner.min.compaction.lag.ms",
         "Shortest time that a record of a compacted topic stays as it is."),
    _row("min.insync.replicas", INT, 1, at_least(1), "min.insync.replicas",
         "Replicas, the leader included, that must be in sync for a write with acks=all to be taken."),
    _row("preallocate", BOOLEAN, False, None, "log.preallocate",
         "Reserve a segment's whole size on disk when it is created."),
    _row("remote.log.copy.disable", BOOLEAN, False, None, "",
         "With tiered storage, stop copying the topic's segments to the remote tier; those there stay "
         "readable."),
    _row("remote.log.delete.on.disable", BOOLEAN, False, None, "",
         "Delete the topic's remote segments when its tiered storage is turned off."),
    _row("remote.storage.enable", BOOLEAN, False, None, "",
         "Keep the topic's old segments in tiered storage."),
    _row("retention.bytes", LONG, -1, None, "log.retention.bytes",
         "Size of one partition above which its oldest segments are deleted; -1 for no limit."),
    _row("retention.ms", LONG, 336 * HOUR_MS, at_least(-1),
         (BrokerSynonym("log.retention.ms"), BrokerSynonym("log.retention.minutes", 60_000),
          BrokerSynonym("log.retention.hours", HOUR_MS)),
         "Age at which a segment is deleted, by its newest record; -1 for no limit. kbroker keeps two "
         "weeks."),
    _row("segment.bytes", INT, 1 << 30, at_least(1 << 20), "log.segment.bytes",
         "Size at which a segment is closed and a new one begun. Retention and compaction work on closed "
         "ones."),
    _row("segment.index.bytes", INT, 10 << 20, at_least(4), "log.index.size.max.bytes",
         "Largest size of a segment's index; a full index closes the segment."),
    _row("segment.jitter.ms", LONG, 0, at_least(0),
         (BrokerSynonym("log.roll.jitter.ms"), BrokerSynonym("log.roll.jitter.hours", HOUR_MS)),
         "Up to so much is taken off segment.ms at random, so that not all segments close at once."),
    _row("segment.ms", LONG, 168 * HOUR_MS, at_least(1),
         (BrokerSynonym("log.roll.ms"), BrokerSynonym("log.roll.hours", HOUR_MS)),
         "Age at which a segment is closed even when it is not full."),
    _row("unclean.leader.election.enable", BOOLEAN, False, None, "unclean.leader.election.enable",
         "Let a replica that is out of sync become leader when no other is left, at the price of lost "
         "records."),
))

# Taken but not listed unless set, as Kafka does: segments below segment.bytes' lower limit, for tests.
_INTERNAL = (
    _row("internal.segment.bytes", INT, None, at_least(1), "",
         "Segment size below the limit of segment.bytes, for tests only."),
)
# fmt: on

ALL_TOPIC_CONFIGS = TOPIC_CONFIGS | config_def(_INTERNAL)
