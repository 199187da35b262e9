"""The plan of a run, drawn from its seed: configs of the broker and its topics, clients, faults, durations."""

from dataclasses import dataclass, field
from random import Random

from kbroker.simulation.scenarios.faults import Fault
from kbroker.simulation.scenarios.scenarios import (
    Scenario,
    broker_configs,
    compaction_configs,
    groups_configs,
    internal_configs,
    topic_configs,
    transaction_configs,
)

MAX_PARTITIONS = 3
# Faults that may lose acknowledged records of one partition and not of another, which tears transactions. Transactions
# run with them only under flush.before.ack.
LOSING = ("power", "rot", "disk_error")
OUTPUT = "output"


@dataclass(slots=True)
class Topic:
    partitions: int
    configs: dict[str, str]
    # The number of keys of a compacted topic; 0 without compaction.
    keys: int = 0


@dataclass(slots=True)
class Plan:
    """`troubles`: the maximum number of concurrent faults, with a mean pause of `pause_s` seconds. `seconds`: how long
    the programs run with faults. `groups_topic`, `transactions_topic`: configs of __consumer_offsets and
    __transaction_state. Numbers of programs: `readers` assign partitions; `members` consume in a group; `trimmers` send
    DeleteRecords; `transactors` write in transactions and may share transactional ids; `transformers` consume,
    transform and produce to the topic `output`; `saboteurs` repeat outdated requests."""

    durable: bool
    coordination: bool
    broker: dict[str, str]
    topics: dict[str, Topic]
    faults: dict[str, Fault]
    troubles: int
    pause_s: float
    seconds: float
    producers: int
    readers: int
    members: int
    pause_between_sends_s: float
    groups_topic: dict[str, str]
    trimmers: int
    transactors: int = 0
    transactional_ids: int = 1
    transformers: int = 0
    saboteurs: int = 0
    transactions_topic: dict[str, str] = field(default_factory=dict)
    # Whether a topic is deleted under load and created again.
    recreation: bool = False

    @property
    def transactional(self) -> bool:
        """Whether any program writes in transactions."""
        return bool(self.transactors or self.transformers)

    @classmethod
    def make(cls, scenario: Scenario, random: Random) -> "Plan":
        topics = {
            f"topic{number}": Topic(random.randint(1, MAX_PARTITIONS), topic_configs(random, durable=scenario.durable))
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
            broker=broker_configs(random),
            topics=topics,
            faults=faults,
            troubles=random.randint(1, 3) if faults else 0,
            pause_s=random.choice((0.2, 1.0, 4.0)),
            seconds=random.uniform(2.0, 15.0),
            producers=random.randint(1, 3),
            readers=random.randint(1, 2),
            members=random.randint(0, 3),
            pause_between_sends_s=random.choice((0.01, 0.05, 0.2)),
            groups_topic=groups_configs(random, durable=scenario.durable),
            trimmers=int(random.random() < 0.2),
        )
        if scenario.transactions and plan._may_transact() and random.random() < scenario.transactions:
            plan._transact(random, exactly_once=scenario.exactly_once or random.random() < 0.3)
        elif random.random() < scenario.compaction:
            plan.compact(random, random.choice((1, 5, 50, 500)))
        return plan

    def compact(self, random: Random, keys: int) -> None:
        """Compact all topics, since each producer writes to all of them."""
        self.broker["log.cleaner.backoff.ms"] = "100"
        for topic in self.topics.values():
            topic.keys = keys
            topic.configs.update(compaction_configs(random))

    def _may_transact(self) -> bool:
        return self.durable or not any(name in self.faults for name in LOSING)

    def _transact(self, random: Random, *, exactly_once: bool) -> None:
        self.broker.update(transaction_configs(random))
        self.transactions_topic = internal_configs(random, durable=self.durable)
        self.saboteurs = int(random.random() < 0.5)
        self.producers = min(self.producers, 1)
        self.members = min(self.members, 1)
        self.transactors = random.randint(1, 3)
        self.transactional_ids = random.randint(1, self.transactors)
        if exactly_once:
            # Records that are deleted before they are read would have no result.
            self.trimmers = 0
            self.transactors = min(self.transactors, 1)
            self.transformers = random.randint(1, 3)
            self.producers = max(1, self.producers)
            self.topics[OUTPUT] = Topic(random.randint(1, MAX_PARTITIONS), topic_configs(random, durable=self.durable))
