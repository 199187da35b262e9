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
from kbroker.config.definitions import log
from kbroker.config.definitions.no_effect import keys_without_effect
from kbroker.config.queue_configs import DEFAULT_LEVELS, DELAY_LEVELS, RETRY_KEYS, delay_levels
from kbroker.config.validators import at_least, between, list_of
from kbroker.config.values import BOOLEAN, INT, LIST, LONG, LONG_MAX, STRING, ConfigType, Value

HOUR_MS = 3_600_000
# Topic configs with the type, the default, the validator and the text of the broker config that is their default.
_AS_BROKER_CONFIG = {
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "kbroker.record.validation": "kbroker.record.validation",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.decompressed.message.bytes": "max.decompressed.message.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "retention.bytes": "log.retention.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}


def _key(
    name: str,
    config_type: ConfigType,
    default: Value,
    validator: Validator | None,
    synonym: str | tuple[BrokerSynonym, ...],
    documentation: str,
    importance: Importance = MEDIUM,
) -> ConfigKey:
    """Return a definition. `synonym` is the name of the broker config that is its default, or "" if there is none."""
    synonyms = synonym if isinstance(synonym, tuple) else (BrokerSynonym(synonym),) if synonym else ()
    return ConfigKey(name, config_type, default, validator, importance, CLUSTER_WIDE, documentation, synonyms)


def _as_broker_config(name: str, broker_name: str) -> ConfigKey:
    (key,) = (key for key in log.KEYS if key.name == broker_name)
    return key._replace(name=name, importance=MEDIUM, update_mode=CLUSTER_WIDE, synonyms=(BrokerSynonym(broker_name),))


# fmt: off
TOPIC_CONFIGS = config_def((
    *(_as_broker_config(*names) for names in _AS_BROKER_CONFIG.items()),
    _key("cleanup.policy", LIST, ("delete",), list_of("compact", "delete"), "log.cleanup.policy",
        "What happens to old segments: delete removes them by age or size, compact keeps the last record of each "
        "key. Both can be combined; an empty list keeps everything."),
    _key("delete.retention.ms", LONG, 24 * HOUR_MS, at_least(0), "log.cleaner.delete.retention.ms",
        "How long a compacted topic keeps tombstones. A consumer that reads from offset 0 must finish within this "
        "time to see every deletion."),
    _key("flush.before.ack", BOOLEAN, False, None, "",
        "Only in kbroker. A write is acknowledged, and visible to consumers, only after it is flushed to disk. "
        "Concurrent writes share one flush.",
        HIGH),
    _key("flush.messages", LONG, LONG_MAX, at_least(1), "log.flush.interval.messages",
        "Number of records after which the log is flushed to disk. By default the operating system decides."),
    _key("flush.ms", LONG, LONG_MAX, at_least(0),
        (BrokerSynonym("log.flush.interval.ms"), BrokerSynonym("log.flush.scheduler.interval.ms")),
        "Maximum time before a record is flushed to disk. By default the operating system decides."),
    _key("follower.replication.throttled.replicas", LIST, (), validators.throttled_replicas, "",
        "Replicas whose fetches follower.replication.throttled.rate limits on the follower's side, except those that "
        "are in sync: pairs PARTITION:BROKER, or * for all. BROKER is the follower."),
    _key("index.interval.bytes", INT, 4096, at_least(0), "log.index.interval.bytes",
        "Bytes of log between two entries of the offset index. A smaller value makes lookups faster and indexes "
        "larger."),
    _key("kbroker.archive.before.delete", BOOLEAN, False, None, "",
        "Only in kbroker. Whether retention keeps what is not in the archive of the topic yet, also while the archive "
        "cannot be read. A compacted topic keeps its segments likewise until compaction removes their records."),
    _key("kbroker.archive.earliest", BOOLEAN, False, None, "",
        "Only in kbroker. Whether the earliest offset of the topic is that of its archive, so that consumers with "
        "auto.offset.reset=earliest read all of it; by default it is that of the log."),
    _key("kbroker.archive.table", STRING, "", None, "",
        "Only in kbroker. The archive (kbroker archive run) from which the broker serves offsets that the log no "
        "longer has: LOCATION, or LOCATION#TOPIC if the topic has another name there. A directory is an absolute path "
        "that all brokers of the topic can read. See kbroker.archive.locations."),
    _key("kbroker.dedup.max.keys", INT, 100_000, between(1, 1_000_000), "",
        "Only in kbroker. The number of idempotency keys that are remembered for each partition. Above it the oldest "
        "ones are forgotten, before the window has passed."),
    _key("kbroker.dedup.window.ms", LONG, 0, at_least(0), "",
        "Only in kbroker. A record whose header IDEMPOTENCY_KEY was stored within this time is acknowledged with the "
        "offset of the first one, and not stored again. 0: records are not compared."),
    _key("kbroker.delay.enable", BOOLEAN, False, None, "",
        "Only in kbroker. Whether records with a header DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS are "
        "delivered later. Not for compacted topics; it cannot be disabled again."),
    _key(DELAY_LEVELS, STRING, DEFAULT_LEVELS, delay_levels, "",
        "Only in kbroker. The delays of the levels of the header DELAY, from level 1 on, separated by spaces. They "
        "cannot be changed once kbroker.delay.enable is set, because the due times of stored records depend on them. "
        "The default is RocketMQ's."),
    _key("kbroker.delay.max.ms", LONG, 40 * 24 * HOUR_MS, at_least(1), "",
        "Only in kbroker. Maximum delay of a record in a topic with kbroker.delay.enable. Records with a longer one "
        "are refused."),
    _key("kbroker.ttl.enable", BOOLEAN, False, None, "",
        "Only in kbroker. Whether the header TTL_MS sets the TTL of a record: consumers no longer see the record this "
        "number of milliseconds after its timestamp. Not for compacted topics."),
    _key("kbroker.ttl.ms", LONG, 0, at_least(0), "",
        "Only in kbroker. TTL of records: consumers no longer see a record this time after its timestamp. With "
        "kbroker.ttl.enable, a record's header TTL_MS takes precedence. 0: no TTL. Not for compacted topics."),
    _key("kbroker.view.filter", STRING, "*", None, "",
        "Only in kbroker. Which records of its source a view has: alternatives separated by ||, each a tag (the header "
        "TAGS) or KEYS in (key1, key2) (the header KEYS, with keys separated by spaces); * is all."),
    _key("kbroker.view.of", STRING, "", None, "",
        "Only in kbroker. The topic is a view of this topic: it has no records of its own, and consumers read those of "
        "its source that kbroker.view.filter selects. It can only be set when the topic is created."),
    _key("leader.replication.throttled.replicas", LIST, (), validators.throttled_replicas, "",
        "Replicas whose followers leader.replication.throttled.rate limits on the leader's side, except those that are "
        "in sync: pairs PARTITION:BROKER, or * for all. BROKER is the leader."),
    _key("max.message.bytes", INT, 1_048_588, at_least(0), "message.max.bytes",
        "Maximum size of a record batch as it is sent."),
    _key("message.timestamp.after.max.ms", LONG, HOUR_MS, at_least(0), "log.message.timestamp.after.max.ms",
        "How far a record's timestamp may be ahead of the broker's clock; not checked for LogAppendTime."),
    _key("message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0), "log.message.timestamp.before.max.ms",
        "How far a record's timestamp may be behind the broker's clock; not checked for LogAppendTime."),
    _key("replica.lag.max.messages", LONG, -1, at_least(-1), "",
        "Only in kbroker (and in Kafka before 0.9). A replica with a larger lag, in records, leaves the in-sync "
        "replicas, and one with a smaller lag stays while it fetches. -1: replica.lag.time.max.ms decides alone. A "
        "value below the records of one batch removes healthy replicas."),
    _key("retention.ms", LONG, 336 * HOUR_MS, at_least(-1),
        (BrokerSynonym("log.retention.ms"), BrokerSynonym("log.retention.minutes", 60_000),
         BrokerSynonym("log.retention.hours", HOUR_MS)),
        "Age of a segment's newest record at which the segment is deleted; -1 means no limit. kbroker's default is "
        "two weeks."),
    _key("segment.bytes", INT, 1 << 30, at_least(1 << 20), "log.segment.bytes",
        "Size at which a segment is rolled. Retention and compaction apply to rolled segments only."),
    _key("segment.jitter.ms", LONG, 0, at_least(0),
        (BrokerSynonym("log.roll.jitter.ms"), BrokerSynonym("log.roll.jitter.hours", HOUR_MS)),
        "Maximum random reduction of segment.ms, which prevents all segments from being rolled at once."),
    _key("segment.ms", LONG, 168 * HOUR_MS, at_least(1),
        (BrokerSynonym("log.roll.ms"), BrokerSynonym("log.roll.hours", HOUR_MS)),
        "Age at which a segment is rolled even if it is not full."),
    *RETRY_KEYS,
    *keys_without_effect("topic"),
))

# Kafka accepts these without listing them until they are set.
_INTERNAL = (
    _key("internal.segment.bytes", INT, None, at_least(1), "",
        "Segment size below the minimum of segment.bytes, for tests only."),
)
# fmt: on

ALL_TOPIC_CONFIGS = TOPIC_CONFIGS | config_def(_INTERNAL)
