"""What is wrong with partitions: the conditions of `kbroker topics describe` and `kbroker cluster status`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.client import chunks, read_again

MAX_TOPICS = 200  # per request


class PartitionHealth(NamedTuple):
    """A partition as the brokers describe it. `min_isr`: the topic's min.insync.replicas. `leader` is -1 for none.

    `adding`: the replicas that a reassignment adds.
    """

    leader: int
    replicas: Sequence[int]
    isr: Sequence[int]
    min_isr: int
    adding: Sequence[int] = ()

    @property
    def effective_min_isr(self) -> int:
        """The in-sync replicas that acks=all needs: no more than there are replicas (KAFKA-15583)."""
        return min(self.min_isr, len(self.replicas))


# The first four are options of Kafka's kafka-topics, where at-min-isr includes partitions with all their replicas. A
# reassignment that is not complete does not make a partition under-replicated.
CONDITIONS: Mapping[str, Callable[[PartitionHealth], bool]] = {
    "under-replicated": lambda part: len(part.isr) < len(part.replicas) - len(part.adding),
    "at-min-isr": lambda part: len(part.isr) == part.effective_min_isr < len(part.replicas),
    "under-min-isr": lambda part: len(part.isr) < part.effective_min_isr,
    "offline": lambda part: part.leader < 0,
    "out-of-preference": lambda part: part.leader >= 0 and part.leader != part.replicas[0],
}


def min_isr_by_topic(client: Any, topics: Sequence[str]) -> dict[str, int]:
    """Return min.insync.replicas of each topic, 1 if the broker does not say."""
    from kafka.admin import ConfigResource

    values = {}
    for chunk in chunks(topics, MAX_TOPICS):
        resources = [ConfigResource("TOPIC", topic, {"min.insync.replicas": None}) for topic in chunk]
        described = _topic_configs(client, resources)
        for topic in chunk:
            config = described.get(topic, {}).get("min.insync.replicas")
            values[topic] = int(config["value"]) if config else 1
    return values


def _topic_configs(client: Any, resources: Sequence[Any]) -> Mapping[str, Any]:
    described = read_again(lambda: client.describe_configs(resources, config_filter="all"))
    found: Mapping[str, Any] = described.get("topic", {})
    return found


def partition_health(partition: Mapping[str, Any], min_isr: int, adding: Sequence[int] = ()) -> PartitionHealth:
    """Return the health of a partition of a Metadata response."""
    return PartitionHealth(partition["leader_id"], partition["replica_nodes"], partition["isr_nodes"], min_isr, adding)
