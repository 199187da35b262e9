"""Sends ISR changes to the controller with AlterPartition requests (KIP-497)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.common import KafkaError, TopicPartition
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode, known_error
from protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    BrokerState,
)

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.replica.partition_state import IsrProposal
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.isr")

# How long changes are gathered for one request, in milliseconds.
GATHER_MS = 50
# The wait before a request whose outcome is unknown is repeated, in milliseconds.
RETRY_MS = 500
RECOVERED = 0

Send = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]

# After these errors the change is repeated. All others are final.
RETRIABLE_ERRORS = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


@dataclass(slots=True, eq=False)
class IsrChange:
    """A proposal for one partition. `isr`: (broker id, broker epoch or -1) of each replica (KIP-903).

    `is_current` returns whether the leader still waits for the outcome. `on_result` is called with it.
    """

    tp: TopicPartition
    topic_id: bytes
    proposal: IsrProposal
    isr: list[tuple[int, int]]
    is_current: Callable[[], bool]
    on_result: Callable[[AlterPartitionResponsePartition], None]


class AlterPartitionManager:
    """Gathers the changes of all partitions. One request is in flight at a time.

    If the outcome of a request is unknown, the same changes are sent again until they have one: the controller refuses
    those that it has made already with INVALID_UPDATE_VERSION.
    """

    def __init__(self, environment: Environment, send: Send, broker_id: int, broker_epoch: Callable[[], int]) -> None:
        self._environment = environment
        self._send = send
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._waiting: list[IsrChange] = []
        self._task: Task[None] | None = None

    def submit(self, change: IsrChange) -> None:
        """Send a change within 50 ms, or after the request in flight."""
        self._waiting.append(change)
        if self._task is None:
            self._task = self._environment.loop.create_task(self._run())

    async def stop(self) -> None:
        """Drop the changes without a result."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        wait_ms = GATHER_MS
        while self._waiting:
            await self._environment.sleep(wait_ms / 1000)
            changes = [change for change in self._waiting if change.is_current()]
            self._waiting = []
            unfinished = await self._send_changes(changes) if changes else []
            self._waiting = unfinished + self._waiting
            wait_ms = RETRY_MS if unfinished else GATHER_MS
        self._task = None

    async def _send_changes(self, changes: list[IsrChange]) -> list[IsrChange]:
        """Send a request and report its results. Returns the changes without a final result."""
        try:
            response = await self._send(self._request(changes))
            if response.error_code:
                raise KafkaError(known_error(response.error_code))
        except KafkaError as error:
            log.warning("ISR changes are repeated", partitions=len(changes), reason=error)
            return changes
        except Exception as error:
            log.failure("AlterPartition failed", error)
            return changes
        results = {
            (topic.topic_id, result.partition_index): result for topic in response.topics for result in topic.partitions
        }
        unfinished = []
        for change in changes:
            result = results.get((change.topic_id, change.tp.partition))
            if result is None or known_error(result.error_code) in RETRIABLE_ERRORS:
                unfinished.append(change)
                continue
            try:
                change.on_result(result)
            except Exception as error:
                # The changes of other partitions still need their outcomes.
                log.failure("ISR change not applied", error, partition=change.tp)
        return unfinished

    def _request(self, changes: list[IsrChange]) -> AlterPartitionRequest:
        topics: dict[bytes, AlterPartitionRequestTopic] = {}
        for change in changes:
            topic = topics.setdefault(change.topic_id, AlterPartitionRequestTopic(topic_id=change.topic_id))
            topic.partitions.append(
                AlterPartitionRequestPartition(
                    partition_index=change.tp.partition,
                    leader_epoch=change.proposal.leader_epoch,
                    new_isr_with_epochs=[BrokerState(broker_id=id, broker_epoch=epoch) for id, epoch in change.isr],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=change.proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )
