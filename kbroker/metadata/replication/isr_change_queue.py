"""ISR changes that leaders request, gathered into few writes.

Every broker loads each write. A broker that misses more than change_log.RECENT_CHANGES writes has to read all metadata
again, so ISR changes that arrive within 50 ms are written together.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.metadata.control_manager import ControllerContext, ControlManager
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_requests import RequestedIsr, alter_partition
from kbroker.metadata.store.partition_chunks import ChunkDraft
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future, Task

GATHER_S = 0.05

AlterPartitionResult = PartitionRegistration | ErrorCode


@dataclass(slots=True)
class IsrRequest:
    """A partition in an AlterPartition request."""

    topic_id: bytes
    index: int
    proposal: RequestedIsr


@dataclass(slots=True)
class _AlterPartitionCall:
    broker_id: int
    broker_epoch: int
    proposals: Sequence[IsrRequest]
    done: Future[list[AlterPartitionResult]]


class IsrChangeQueue(ControlManager):
    """Gathers the AlterPartition requests of all brokers."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._calls: list[_AlterPartitionCall] = []
        self._altering: Task[None] | None = None
        self._altered_at = float("-inf")

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrRequest]
    ) -> list[AlterPartitionResult]:
        """Change the ISRs of partitions that a broker leads. Returns each partition's new state or error, in order.

        Raises KafkaError if the whole request is refused.
        """
        if not self._writer.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        call = _AlterPartitionCall(broker_id, broker_epoch, proposals, self._loop.create_future())
        self._calls.append(call)
        if self._altering is None:
            self._altering = self._loop.create_task(self._alter_gathered())
        return await call.done

    async def _alter_gathered(self) -> None:
        try:
            while self._calls:
                wait_s = self._altered_at + GATHER_S - self._loop.time()
                if wait_s > 0:
                    await sleep(wait_s)
                async with self._lock:
                    calls, self._calls = self._calls, []
                    await self._alter(calls)
                self._altered_at = self._loop.time()
        finally:
            self._altering = None

    async def _alter(self, calls: Sequence[_AlterPartitionCall]) -> None:
        outcomes: list[list[AlterPartitionResult] | Exception]
        try:
            await self._writer.prepare()
            draft = ChunkDraft(self._loader.chunks)
            outcomes = [self._decide(call, draft) for call in calls]
            await self._writer.commit_all(draft.ops())
        except Exception as error:
            outcomes = [error] * len(calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            if call.done.done():
                continue
            if isinstance(outcome, Exception):
                call.done.set_exception(outcome)
            else:
                call.done.set_result(outcome)

    def _decide(self, call: _AlterPartitionCall, draft: ChunkDraft) -> list[AlterPartitionResult] | Exception:
        known = self._loader.registrations
        try:
            self._check_broker_epoch(call.broker_id, call.broker_epoch)
        except KafkaError as error:
            return error
        is_acceptable = self._is_acceptable()
        results: list[AlterPartitionResult] = []
        for topic_id, index, proposal in ((item.topic_id, item.index, item.proposal) for item in call.proposals):
            found = draft.find(topic_id, index)
            if topic_id not in self._loader.image.topics_by_id:
                results.append(ErrorCode.UNKNOWN_TOPIC_ID)
            elif found is None:
                results.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                number, partition = found
                result = alter_partition(
                    partition, call.broker_id, proposal, known, is_acceptable, self._rules(topic_id)
                )
                if isinstance(result, PartitionRegistration) and result is not partition:
                    draft.replace(number, topic_id, index, result)
                    if result.leader != call.broker_id:
                        # Both a change and an error: it has completed a reassignment, or a better broker has joined.
                        result = ErrorCode.NEW_LEADER_ELECTED
                results.append(result)
        return results
