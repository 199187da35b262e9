"""What a seed makes of a scenario: the broker, its topics, who uses them, and how long things go wrong."""

from dataclasses import dataclass
from random import Random

from kbroker.simulation.faults import Fault
from kbroker.simulation.scenarios import Scenario, broker_configs, groups_configs, topic_configs

MAX_PARTITIONS = 3


@dataclass(slots=True)
class Topic:
    partitions: int
    configs: dict[str, str]


@dataclass(slots=True)
class Plan:
    """`troubles`: so many faults may be under way at a time, with `pause_s` seconds between them on average. `seconds`:
    how long the programs run with faults. `groups_topic`: configs of __consumer_offsets. `trimmers`: programs that
    delete records."""

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
        return cls(
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
