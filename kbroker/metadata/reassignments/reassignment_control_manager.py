"""Reassignments of partitions (KIP-455), written to the coordination service.

The decisions are in kbroker/metadata/replication. A reassignment is part of the state of its partition, and the ISR
change that fulfils it also completes it. So it needs no task, which another controller would have to continue.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.common import KafkaError
from kbroker.metadata.control_manager import ControlManager, PartitionOutcome
from kbroker.metadata.reassignments.alter_reassignments import (
    RequestedReassignment,
    alter_reassignment,
    missing_partition,
)
from kbroker.metadata.replication.leader_elections import balance_leader
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.metadata.topics.views import check_not_view
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced, yield_if_due

log = EventLogger("kbroker.metadata")


class ReassignmentControlManager(ControlManager):
    async def alter_reassignments(
        self, requested: Sequence[RequestedReassignment], may_change_factor: bool = True
    ) -> list[PartitionOutcome]:
        """Begin, replace or cancel reassignments (KIP-455). Returns the outcome of each, in order.

        Without `may_change_factor` a target must have as many replicas as the partition has.

        Those without an error are written in one multi, if it is not too large (some thousand partitions). If it is, a
        failure may leave only some partitions written, each as a whole, and the client can repeat the request. Raises
        KafkaError if not all are known to be written.
        """
        async with self._lock:
            await self._writer.prepare()
            draft = ChunkDraft(self._loader.chunks)
            outcomes = []
            for topic, index, target in paced(requested):
                error = None
                try:
                    self.alter(draft, topic, index, target, may_change_factor)
                except KafkaError as refusal:
                    error = refusal
                outcomes.append(PartitionOutcome(topic, index, error))
            await self._writer.commit_all(draft.ops())
        for (topic, index, target), outcome in zip(requested, outcomes, strict=True):
            if outcome.error is None:
                partition = f"{topic}-{index}"
                if target is None:
                    log.info("reassignment cancelled", partition=partition)
                else:
                    log.info("reassignment requested", partition=partition, replicas=list(target))
                yield_if_due()
        return outcomes

    async def check_current(self) -> None:
        """Wait until the image has all changes of this controller and of former ones. Raises KafkaError.

        A controller that has just been elected would otherwise miss a reassignment that a client has begun.
        """
        async with self._lock:
            await self._writer.prepare()

    def alter(
        self, draft: ChunkDraft, topic: str, index: int, target: Sequence[int] | None, may_change_factor: bool = True
    ) -> None:
        """Add the change of one partition to the draft. Raises KafkaError."""
        topics, known = self._image.topics, self._loader.registrations
        check_not_view(topics.get(topic), "move the partitions of")
        found = draft.find(topics[topic].topic_id, index) if topic in topics else None
        if found is None:
            raise missing_partition(topics, topic, index)
        number, partition = found
        topic_id = topics[topic].topic_id
        altered = alter_reassignment(
            f"{topic}:{index}",
            partition,
            target,
            {broker_id: broker.registration.rack for broker_id, broker in known.items()},
            self._is_acceptable(),
            self._rules(topic_id),
            may_change_factor=may_change_factor,
        )
        if altered is not None:
            draft.replace(number, topic_id, index, altered)

    def elect_preferred(self, draft: ChunkDraft, topic: str, index: int) -> None:
        """Add the election of a partition's preferred leader to the draft, if it can lead. Raises KafkaError."""
        topics = self._image.topics
        topic_id = topics[topic].topic_id
        found = draft.find(topic_id, index)
        if found is None:
            raise missing_partition(topics, topic, index)
        number, partition = found
        elected = balance_leader(partition, self._is_acceptable(), self._rules(topic_id))
        if elected is not None:
            draft.replace(number, topic_id, index, elected)
