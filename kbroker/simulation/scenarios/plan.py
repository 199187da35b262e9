"""What a seed makes of a scenario: the broker, its topics, who uses them, and how long things go wrong."""

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
# What may take from one partition what it leaves in another, so that a transaction is torn, unless all is synced.
LOSING = ("power", "rot", "disk_error")
OUTPUT = "output"


@dataclass(slots=True)
class Topic:
    partitions: int
    configs: dict[str, str]
    # How many keys its records have, if it is compacted.
    keys: int = 0


@dataclass(slots=True)
class Plan:
    """`troubles`: so many faults may be under way at a time, with `pause_s` seconds between them on average. `seconds`:
    how long the programs run with faults. `groups_topic`: configs of __consumer_offsets. `trimmers`: programs that
    delete records. `transactors` write in transactions, of which several may have one transactional id; `transformers`
    write what they make of the other topics to the topic `output`; `saboteurs` send what is out of date;
    `transactions_topic`: configs of __transaction_state."""

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

    @property
    def transactional(self) -> bool:
        """Whether anything is written in transactions."""
        return bool(self.transactors or self.transformers)

    @classmethod
    def make(cls, scenario: Scenario, random: Random) -> "Plan":
        topics = {
            f"topic{number}": Topic(random.randint(1, MAX_PARTITIONS), topic_configs(random, durable=scenario.durable))
            for number in range(random.randint(1, 2))
        }
        faults = dict(scenario.faults)
        # Not all at once: fewer kinds at a time go deeper.
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
            # What is deleted before it is read has no result.
            self.trimmers = 0
            self.transactors = min(self.transactors, 1)
            self.transformers = random.randint(1, 3)
            self.producers = max(1, self.producers)
            self.topics[OUTPUT] = Topic(random.randint(1, MAX_PARTITIONS), topic_configs(random, durable=self.durable))
