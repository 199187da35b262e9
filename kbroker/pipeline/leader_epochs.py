"""Where the leader epochs of partitions begin and end (KIP-320)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import at_leaders
from kbroker.client.requests import Partition
from kbroker.common import TopicPartition
from protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

CONSUMER = -1


class EpochEnd(NamedTuple):
    """A leader epoch and the offset at which the next one begins, or the log ends. Both are -1 if it is unknown."""

    epoch: int
    end_offset: int


def epoch_ends(cluster: ClusterClient, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    """Return for each epoch the largest one of the partition's log that is not larger, and its end.

    If the log has only larger epochs, the requested epoch is returned with the start of the first one.
    """
    ends: dict[TopicPartition, EpochEnd] = {}

    def ask(leader: int, partitions: Sequence[Partition], errors: dict[Partition, int]) -> None:
        rows: dict[str, list[OffsetForLeaderPartition]] = {}
        for topic, partition in partitions:
            epoch = epochs[TopicPartition(topic, partition)]
            rows.setdefault(topic, []).append(OffsetForLeaderPartition(partition=partition, leader_epoch=epoch))
        topics = [OffsetForLeaderTopic(topic=topic, partitions=listed) for topic, listed in rows.items()]
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=topics)
        for result in cluster.request(request, OffsetForLeaderEpochResponse, leader).topics:
            for row in result.partitions:
                if row.error_code:
                    errors[result.topic, row.partition] = row.error_code
                else:
                    ends[TopicPartition(result.topic, row.partition)] = EpochEnd(row.leader_epoch, row.end_offset)

    at_leaders(cluster, epochs, ask)
    return ends
