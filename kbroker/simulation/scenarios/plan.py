"""The plan of a run, drawn from its seed: configs of the broker and its topics, clients, faults, durations, limits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from kbroker.coordinator.share import persister, share_coordinator, share_shard
from kbroker.queues.dedup import key_state
from kbroker.queues.delay import delivery, pending_records, snapshots, stored_records
from kbroker.replica import assigned_partitions
from kbroker.replica.fetch import fetch_manager, fetch_session
from kbroker.replica.history import history_client, history_manager
from kbroker.replica.produce import marker_appends
from kbroker.runtime import turns
from kbroker.server import connection, large_request
from kbroker.simulation.scenarios.archiver import draw_archive_configs
from kbroker.simulation.scenarios.cluster_faults import absence
from kbroker.simulation.scenarios.faults import Fault
from kbroker.simulation.scenarios.scenarios import Scenario
from kbroker.simulation.scenarios.simulation import RACK_AWARE, SECURITY
from protocol.fast import produce

MAX_PARTITIONS = 3
MAX_REPLICAS = 3
# Faults that may lose acknowledged records, of one partition and not of another, which tears transactions. Transactions
# run with them only under flush.before.ack.
LOSSY_FAULTS = ("power", "rot", "disk_error")
OUTPUT = "output"
# A follower with such limits gets about one batch with each fetch, some 350 a second of all partitions of a leader. A
# producer with such a pause sends up to 200 a second, others up to 40.
FOLLOWER_LIMITS = {"replica.fetch.max.bytes": 2 << 10, "replica.fetch.response.max.bytes": 4 << 10}
SHORT_PAUSE_S = 0.01
# How much longer runs with self-healing are: brokers stay away, and return.
HEALING_S = 15.0
# How much longer runs are in which the coordination service loses its data: all brokers start again.
LONG_FAULTS_S = 10.0
# The same for runs in which writes must go on: disks fill several times.
PROGRESS_S = 5.0
# How long runs with security are at most: their rules change often.
SECURITY_S = 8.0


@dataclass(slots=True)
class Topic:
    partitions: int
    configs: dict[str, str]
    # The number of keys of a compacted topic; 0 without compaction.
    keys: int = 0


@dataclass(slots=True)
class Plan:
    """`brokers`: the number of brokers. `durable`: all topics have flush.before.ack. `coordination`: the brokers use an
    external coordination service. `broker`, `groups_topic`, `transactions_topic`: configs of the brokers, of
    __consumer_offsets and __transaction_state.

    `concurrent_faults`: the maximum number of faults at a time, with a mean pause of `pause_s` seconds between them.
    `seconds`: how long the programs run with faults.

    Numbers of programs: `producers`; `readers`, which assign partitions; `members` of a consumer group; `deleters`,
    which send DeleteRecords; `transactors`, which write in transactions and may share transactional ids;
    `transformers`, which consume, transform and produce to the topic `output`; `stale_clients`, which repeat outdated
    requests. `recreation`: a topic is deleted under load and created again. `administration`: leaders are elected on
    request, topics get other configs and more partitions, partitions are moved. `joining`: the number of the brokers
    that join the cluster under load. `weak_acks`: producers may use acks=1 although there are
    several replicas, which may lose their records. `has_racks`: consumers fetch from replicas in their racks.
    `queues`: topics with delayed delivery, idempotency keys, views and closing partitions are written and read.
    `cordoning`: brokers are cordoned, so that they get no new replicas, and some of them drained.
    `recurring`: faults that happen again and again, beside the others.
    `consumer_protocol`: the members are those of KIP-848.
    `share_members`: of a share group. `group_changes`: an operator alters its start offsets, and deletes, creates and
    grows a topic of it.
    `security`: users log in, whose passwords, rights and quotas change.
    `history`: the topics have archives, and are archived.
    `small_turns`: almost all requests are handled in turns, as otherwise only large ones are.
    """

    durable: bool
    coordination: bool
    broker: dict[str, str]
    topics: dict[str, Topic]
    faults: dict[str, Fault]
    concurrent_faults: int
    pause_s: float
    seconds: float
    producers: int
    readers: int
    members: int
    pause_between_sends_s: float
    groups_topic: dict[str, str]
    deleters: int
    transactors: int = 0
    transactional_ids: int = 1
    transformers: int = 0
    stale_clients: int = 0
    transactions_topic: dict[str, str] = field(default_factory=dict)
    recreation: bool = False
    brokers: int = 1
    administration: bool = False
    joining: int = 0
    weak_acks: bool = False
    has_racks: bool = False
    cordoning: bool = False
    queues: bool = False
    small_turns: bool = False
    security: bool = False
    consumer_protocol: bool = False
    share_members: int = 0
    group_changes: bool = False
    recurring: dict[str, Fault] = field(default_factory=dict)
    history: bool = False

    @property
    def replication_factor(self) -> int:
        return min(self.brokers, MAX_REPLICAS)

    @property
    def transactional(self) -> bool:
        """Whether any program writes in transactions."""
        return bool(self.transactors or self.transformers)

    @property
    def may_outrun_followers(self) -> bool:
        """Whether producers may send more than followers can fetch, which then lag as long as the producers send."""
        has_limits = any(int(self.broker.get(name, limit + 1)) <= limit for name, limit in FOLLOWER_LIMITS.items())
        return has_limits and self.pause_between_sends_s <= SHORT_PAUSE_S

    @classmethod
    def draw(cls, scenario: Scenario, random: Random) -> "Plan":
        topics = {
            f"topic{number}": Topic(
                random.randint(1, MAX_PARTITIONS), draw_topic_configs(random, durable=scenario.durable)
            )
            for number in range(random.randint(1, 2))
        }
        faults = dict(scenario.faults)
        # Draw some kinds of faults: fewer kinds in a run explore each of them more deeply.
        if len(faults) > 1:
            kept = random.sample(sorted(faults), random.randint(1, len(faults)))
            faults = {name: faults[name] for name in kept}
        plan = cls(
            durable=scenario.durable,
            coordination=scenario.coordination and random.random() < 0.8,
            broker=draw_broker_configs(random),
            topics=topics,
            faults=faults,
            concurrent_faults=random.randint(1, 3) if faults else 0,
            pause_s=random.choice((0.2, 1.0, 4.0)),
            seconds=random.uniform(2.0, 15.0),
            producers=random.randint(1, 3),
            readers=random.randint(1, 2),
            members=random.randint(0, 3),
            pause_between_sends_s=random.choice((0.01, 0.05, 0.2)),
            groups_topic=draw_internal_topic_configs(random, durable=scenario.durable),
            deleters=int(random.random() < 0.2),
            brokers=scenario.brokers,
        )
        if plan.brokers > 1:
            plan.deleters = plan.deleters if scenario.administration else 0
            plan.broker.update(draw_cluster_configs(random, plan.replication_factor))
        if scenario.transactions and plan._permits_transactions() and random.random() < scenario.transactions:
            plan._add_transactions(random, exactly_once=scenario.exactly_once or random.random() < 0.3)
        elif random.random() < scenario.compaction:
            plan.compact(random, random.choice((1, 5, 50, 500)))
        if scenario.many_brokers and random.random() < 0.5:
            # More brokers make more requests: such runs are shorter, to cost as much as others.
            plan.brokers, plan.seconds, plan.readers = scenario.many_brokers, plan.seconds * 0.6, 1
        if scenario.administration:
            plan.administration = random.random() < scenario.administration
            plan.weak_acks = random.random() < 0.5
            plan.has_racks = random.random() < 0.5
            if plan.has_racks:
                plan.broker.update(RACK_AWARE)
            plan.joining = random.randint(0, plan.brokers - plan.replication_factor)
        if scenario.consumer_protocol:
            plan.consumer_protocol, plan.members = True, random.randint(2, 4)
            plan.broker.update(draw_group_configs(random))
        if scenario.share_group:
            plan.share_members = random.randint(2, 4)
            plan.broker.update(draw_share_configs(random, plan.replication_factor))
            # Other clients only make such runs longer.
            plan.readers, plan.members, plan.producers = 1, 0, min(plan.producers, 2)
            plan.seconds, plan.pause_between_sends_s = min(plan.seconds, 8.0), max(plan.pause_between_sends_s, 0.05)
        return plan

    def heal(self, random: Random, brokers: int) -> None:
        """Let brokers stay away so long that their replicas are rebuilt on others, of which there are enough."""
        self.broker.update(draw_healing_configs(random))
        self.brokers = max(self.brokers, brokers)
        # Few other kinds, so that brokers stay away often.
        others = random.sample(sorted(self.faults), min(2, len(self.faults)))
        self.faults = {"absence": absence, **{name: self.faults[name] for name in others}}
        self.seconds += HEALING_S

    def add_recurring_faults(self, faults: dict[str, Fault]) -> None:
        self.recurring = faults
        self.seconds += LONG_FAULTS_S if faults else 0.0

    def expect_progress(self) -> None:
        """Let nothing but disks stop writes for long, and no follower leave the ISR because it lags behind."""
        self.broker.update(
            {
                "replica.lag.time.max.ms": "60000",
                "replica.fetch.max.bytes": str(1 << 20),
                "replica.fetch.response.max.bytes": str(10 << 20),
                "replica.fetch.backoff.ms": "50",
            }
        )
        self.seconds += PROGRESS_S
        # Such runs are longer than others, and need few clients.
        self.producers, self.readers, self.members = min(self.producers, 2), 1, min(self.members, 1)
        self.pause_between_sends_s = max(self.pause_between_sends_s, 0.05)
        # A check needs some seconds in which nothing changes.
        self.concurrent_faults, self.pause_s = min(self.concurrent_faults, 2), max(self.pause_s, 1.0)

    def secure(self) -> None:
        """Let users log in, whose passwords, rights and quotas change. Few other clients: these make many requests."""
        self.security = True
        self.broker.update(SECURITY)
        self.seconds = min(self.seconds, SECURITY_S)
        self.producers, self.readers, self.members = 1, 1, min(self.members, 1)
        self.pause_between_sends_s = max(self.pause_between_sends_s, 0.2)

    def compact(self, random: Random, keys: int) -> None:
        """Compact all topics, since each producer writes to all of them."""
        self.broker["log.cleaner.backoff.ms"] = "100"
        for topic in self.topics.values():
            topic.keys = keys
            topic.configs.update(draw_compaction_configs(random))

    def archive(self, random: Random) -> None:
        """Let retention delete soon what is archived, of which consumers see nothing."""
        self.history, self.deleters = True, 0
        self.broker["log.retention.check.interval.ms"] = "300"
        for topic in self.topics.values():
            topic.configs.update(draw_archive_configs(random))

    def _permits_transactions(self) -> bool:
        return self.durable or not any(name in self.faults for name in LOSSY_FAULTS)

    def _add_transactions(self, random: Random, *, exactly_once: bool) -> None:
        self.broker.update(draw_transaction_configs(random))
        self.transactions_topic = draw_internal_topic_configs(random, durable=self.durable)
        self.stale_clients = int(random.random() < 0.5)
        self.producers = min(self.producers, 1)
        self.members = min(self.members, 1)
        self.transactors = random.randint(1, 3)
        self.transactional_ids = random.randint(1, self.transactors)
        if exactly_once:
            # Records that are deleted before they are read would have no result.
            self.deleters = 0
            self.transactors = min(self.transactors, 1)
            self.transformers = random.randint(1, 3)
            self.producers = max(1, self.producers)
            self.topics[OUTPUT] = Topic(
                random.randint(1, MAX_PARTITIONS), draw_topic_configs(random, durable=self.durable)
            )


# Configs of the broker and its topics, drawn from a seed, and lower limits for the time of a run.

KIB = 1 << 10


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


def draw_group_configs(random: Random) -> dict[str, str]:
    """Draw configs of groups of the consumer protocol. Members send heartbeats as often as they like."""
    return {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(random.choice((6_000, 10_000))),
        "group.consumer.assignment.interval.ms": str(random.choice((0, 0, 1_000))),
        "group.consumer.assignors": random.choice(("uniform,range", "range,uniform")),
    }


def draw_share_configs(random: Random, replication_factor: int) -> dict[str, str]:
    """Draw configs of share groups: short locks and sessions, many snapshots of their states."""
    return {
        "group.share.min.session.timeout.ms": "1000",
        "group.share.session.timeout.ms": str(random.choice((3_000, 6_000))),
        "group.share.min.heartbeat.interval.ms": "1000",
        "group.share.heartbeat.interval.ms": "1000",
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.assignment.interval.ms": str(random.choice((0, 1_000))),
        "share.coordinator.state.topic.num.partitions": str(random.choice((1, 3))),
        "share.coordinator.state.topic.replication.factor": str(replication_factor),
        "share.coordinator.state.topic.min.isr": str(max(replication_factor - 1, 1)),
        "share.coordinator.snapshot.update.records.per.snapshot": str(random.choice((0, 3, 20, 500))),
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
# Redundant records of share coordinators are deleted often, cold partitions get new snapshots, and writes fail soon.
_SHARES = (
    (share_coordinator, "PRUNE_INTERVAL_MS", 500),
    (share_shard, "COLD_PARTITION_SNAPSHOT_INTERVAL_MS", 1_000),
    (persister, "RETRY_S", 1.0),
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
# Ranges of history have a few batches, and are soon forgotten; bounds are always read.
_HISTORY = (
    (history_manager, "MAX_READ_BYTES", 2_000),
    (history_manager, "MAX_CACHE_BYTES", 4_000),
    (history_manager, "EXPIRY_MS", 500),
    (history_manager, "BOUNDS_AGE_MS", 500),
    (history_manager, "RETENTION_AGE_MS", 0),
    (history_client, "TIMEOUT_S", 1.0),
    (history_client, "IDLE_S", 2.0),
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
def small_limits(*, small_turns: bool) -> Iterator[None]:
    limits = _SNAPSHOTS + _SHARES + _READ_AHEAD + _HISTORY + (_TURNS if small_turns else ())
    before = [(module, name, getattr(module, name)) for module, name, _ in limits]
    for module, name, value in limits:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
