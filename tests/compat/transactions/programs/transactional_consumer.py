"""A kafka-python consumer whose polls are safe to process within transactions.

With kafka-python 3.0.12 a member that has lost its partitions can process their records a second time, in three ways:

- `group_metadata()` of a member that was removed from its group has generation -1 and no member id. A broker
  accepts offsets with these from any client, since clients older than KIP-447 send them. The membership is therefore
  read together with the records, and records without a membership are dropped.
- A member that is removed while it rejoins keeps its positions, although other members have read on from there.
- The response to an OffsetFetch that a poll no longer waited for is used in a later generation.

Against the last two, each generation begins at committed offsets that were fetched in it.
"""

from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import ConsumerGroupMetadata


class Batch(NamedTuple):
    records: dict[TopicPartition, list[ConsumerRecord]]
    member: ConsumerGroupMetadata  # commit the offsets of the records with this


def notice_rebalance(consumer: KafkaConsumer) -> None:
    """Call this after each poll, so that the next one continues a rebalance that is in progress.

    kafka-python sends JoinGroup and SyncGroup in a task that outlives a poll. If metadata caused the rebalance and the
    poll ends between SyncGroup and its response, no later poll looks at that task: the assignment is lost, and no
    heartbeat is sent any more.
    """
    if consumer._coordinator.rebalance_in_progress():
        consumer._coordinator.request_rejoin()


class TransactionalConsumer:
    """`consumer` has isolation_level="read_committed" and enable_auto_commit=False, and is subscribed."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self._joined: tuple[int, str] | None = None

    def poll(self, timeout_ms: int) -> Batch:
        """Return the next records; none during a rebalance. May raise RetriableError."""
        records = self._consumer.poll(timeout_ms=timeout_ms)
        notice_rebalance(self._consumer)
        member = self._consumer.group_metadata()
        if not records or member.generation_id < 0:
            return Batch({}, member)
        joined = member.generation_id, member.member_id
        if joined != self._joined:
            self.rewind()
            self._joined = joined
            return Batch({}, member)
        return Batch(records, member)

    def rewind(self) -> None:
        """Return to the committed offsets: after a rebalance, and after a transaction was aborted."""
        for tp in self._consumer.assignment():
            # The first response may be that of an older request, which no poll waited for.
            self._consumer.committed(tp)
            self._consumer.seek(tp, self._consumer.committed(tp) or 0)
