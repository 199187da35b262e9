"""The scenarios: which faults come together, and how the broker and its topics are set up, as a seed says."""

from dataclasses import dataclass
from random import Random

from kbroker.simulation.scenarios.faults import (
    CLOCK,
    COORDINATION,
    DISK,
    NETWORK,
    NODE,
    POWER,
    ROT,
    Fault,
    full,
    out_of_files,
    slow_disk,
)

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Scenario:
    """`durable`: nothing is acknowledged before it is synced. `coordination`: the broker uses an external service.

    `transactions`: the share of runs with transactions, of those that permit them; `exactly_once`: groups consume and
    produce in transactions. `compaction`: the share of the other runs whose topics are compacted.
    `recreation`: the share of all runs that delete a topic under load and create it again.
    """

    name: str
    text: str
    faults: dict[str, Fault]
    durable: bool = False
    coordination: bool = False
    transactions: float = 0.0
    compaction: float = 0.0
    exactly_once: bool = False
    recreation: float = 0.0


_ALL = {**NODE, **NETWORK, **DISK, **POWER, **ROT, **CLOCK}

_ALL_BUT_ROT = {name: fault for name, fault in _ALL.items() if name not in ROT}

SCENARIOS = {
    one.name: one
    for one in (
        Scenario("calm", "nothing goes wrong", {}),
        Scenario("network", "links are cut, clogged and slow, connections are reset", NETWORK),
        Scenario("crash", "the process is killed, stopped and paused, and its clock jumps", {**NODE, **CLOCK},
                 recreation=0.2),
        Scenario("power", "the machine loses its power", {**POWER, **NODE}, recreation=0.2),
        Scenario("durable", "power is lost; what is acknowledged has been synced", {**POWER, **NODE}, True),
        Scenario("disk", "reads, writes and syncs fail, or are slow; no room, no descriptors", {**DISK, **NODE},
                 recreation=0.2),
        Scenario("rot", "bits flip in what was not flushed when the process died", {**ROT, **NODE}),
        Scenario("compaction", "topics are compacted; the machine loses its power, the disk is slow or full",
                 {**POWER, **NODE, "full": full, "slow_disk": slow_disk}, compaction=1.0),
        Scenario("coordination", "the coordination service is out of reach", {**COORDINATION, **NODE}, False, True),
        Scenario("everything", "all of it", {**_ALL, **COORDINATION}, False, True, 0.5, 0.2,
                 recreation=0.2),
        Scenario("everything-durable", "all of it but rot; what is acknowledged has been synced", _ALL_BUT_ROT, True,
                 transactions=0.5, compaction=0.2),
        Scenario("transactions", "transactions, and all that leaves what was acknowledged",
                 {**NODE, **NETWORK, **CLOCK, **COORDINATION, "full": full, "out_of_files": out_of_files,
                  "slow_disk": slow_disk}, False, True, 1.0),
        Scenario("transactions-durable", "transactions, and all but rot; what is acknowledged has been synced",
                 _ALL_BUT_ROT, True, transactions=1.0),
        Scenario("exactly-once", "groups consume, transform and produce; all but rot; all acknowledged has been synced",
                 _ALL_BUT_ROT, True, transactions=1.0, exactly_once=True),
    )
}  # fmt: skip


def broker_configs(random: Random) -> dict[str, str]:
    """Small logs that roll, flush and write checkpoints often, in one of many ways."""
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


def topic_configs(random: Random, *, durable: bool) -> dict[str, str]:
    """Of one of the topics that clients use."""
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


def compaction_configs(random: Random) -> dict[str, str]:
    """Of a topic that is compacted again and again."""
    return {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": random.choice(("0", "0.5")),
        "max.compaction.lag.ms": str(random.choice((500, 5_000))),
        "internal.segment.bytes": str(random.choice((2, 16)) * KIB),
        "file.delete.delay.ms": "1000",
    }


def transaction_configs(random: Random) -> dict[str, str]:
    """Of the broker, for the transaction coordinator."""
    return {
        "transaction.state.log.num.partitions": str(random.choice((1, 1, 3))),
        "transaction.state.log.segment.bytes": str(random.choice((1 << 20, 100 << 20))),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(random.choice((100, 1_000, 10_000))),
    }


def groups_configs(random: Random, *, durable: bool) -> dict[str, str]:
    """Of __consumer_offsets."""
    return internal_configs(random, durable=durable)


def internal_configs(random: Random, *, durable: bool) -> dict[str, str]:
    """Of a topic of the broker's own: sometimes it is compacted all the time."""
    configs = {"flush.before.ack": "true"} if durable else {}
    if random.random() < 0.5:
        configs["internal.segment.bytes"] = str(random.choice((1, 4, 16)) * KIB)
        configs["min.cleanable.dirty.ratio"] = random.choice(("0", "0.5"))
        configs["file.delete.delay.ms"] = "1000"
    return configs
