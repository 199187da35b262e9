"""The lag of replicas: the records that their leader has and they do not.

Each broker reports the log end offsets of its replicas to a debugging consumer, as Apache Kafka's brokers do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbroker.cli.common.partitions.list_offsets import DEBUGGING_CONSUMER, LATEST, Partition, list_offsets

UNKNOWN_LAG = "?"

# By broker id; None: the replica or the leader did not respond.
ReplicaLag = Mapping[int, int | None]


def replica_lag(client: Any, topics: Iterable[Mapping[str, Any]]) -> dict[Partition, ReplicaLag]:
    """Return the lag of all replicas of the topics, which are those of a Metadata response.

    The leaders are asked first, so a replica that has everything which the leader had then has no lag.
    """
    partitions = {(topic["name"], row["partition_index"]): row for topic in topics for row in topic["partitions"]}
    led: dict[int, list[Partition]] = {}
    followed: dict[int, list[Partition]] = {}
    for partition, row in partitions.items():
        for broker in row["replica_nodes"]:
            (led if broker == row["leader_id"] else followed).setdefault(broker, []).append(partition)
    ends = list_offsets(client, led, LATEST, DEBUGGING_CONSUMER)
    ends |= list_offsets(client, followed, LATEST, DEBUGGING_CONSUMER)
    return {
        partition: {
            broker: _lag(ends.get((row["leader_id"], partition)), ends.get((broker, partition)))
            for broker in row["replica_nodes"]
        }
        for partition, row in partitions.items()
    }


def _lag(leader_end: int | None, end: int | None) -> int | None:
    return None if leader_end is None or end is None else max(leader_end - end, 0)


def lag_text(lag: ReplicaLag, replicas: Sequence[int]) -> str:
    """Return the lag of each replica in the order of `replicas`: "0,0,12"."""
    return ",".join(UNKNOWN_LAG if lag[broker] is None else str(lag[broker]) for broker in replicas)
