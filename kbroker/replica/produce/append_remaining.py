"""Appends the batches of a Produce request that one iteration of the event loop cannot append.

ReplicaManager.append_records continues here at the first batch that has to wait, for example for slow validation. Large
requests are appended here as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from kbroker.common import KafkaError
from kbroker.replica.produce.delayed_produce import (
    NO_RECORD_ERRORS,
    DelayedProduce,
    LargeDelayedProduce,
    UnacknowledgedBatch,
)
from kbroker.replica.produce.produce_results import ProduceResponse, await_acknowledgement
from kbroker.replica.produce.record_validator import AppendMustWait, RecordValidator
from protocol.fast.produce import PartitionResult, TopicRecords

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.replica.produce.produce_results import VerifiedPartitions
    from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch
    from kbroker.replica.purgatory import Purgatory
    from kbroker.runtime.environment import Clock
    from kbroker.runtime.slices import Slices
    from protocol.errors import ErrorCode
    from protocol.fast.current_leader import CurrentLeader
    from protocol.fast.fetch import TopicKey

# A batch that is not appended yet: (topic, partition, records, list for its result).
RemainingBatch = tuple["TopicKey", int, memoryview | None, list[PartitionResult]]


class Replicas(Protocol):
    """The part of the ReplicaManager that this module uses."""

    purgatory: Purgatory
    record_validator: RecordValidator

    @property
    def clock(self) -> Clock: ...

    def leader(self, key: TopicKey, index: int) -> Partition: ...

    def missing_error(self, key: TopicKey, index: int) -> ErrorCode: ...

    def current_leader(self, key: TopicKey, index: int) -> CurrentLeader | None: ...

    def error_result(self, key: TopicKey, index: int, error: KafkaError) -> PartitionResult: ...

    def delay(
        self, response: ProduceResponse, unacknowledged: list[UnacknowledgedBatch], timeout_ms: int
    ) -> DelayedProduce: ...


async def append_remaining(
    replicas: Replicas,
    remaining: Iterable[RemainingBatch],
    response: ProduceResponse,
    unacknowledged: list[UnacknowledgedBatch],
    acks: int,
    timeout_ms: int,
    produce_version: int,
    verified: VerifiedPartitions | None,
    slices: Slices | None = None,
) -> ProduceResponse:
    """Append the remaining batches of a Produce request. Parameters and results are those of `append_records`.

    `slices`: of a large request, which lets other requests run between two batches.
    """
    transactional = verified is not None
    must_verify = verified is not None and verified.must_verify
    for key, index, records, results in remaining:
        if slices is not None:
            await slices.step()
        try:
            partition = replicas.leader(key, index)
            guard = None if verified is None else verified.guard_of((key, index))
            validated: ValidatedBatch | InspectedBatch | None = None
            while True:
                try:
                    base_offset, end_offset, append_time_ms = partition.append_as_leader(
                        records, acks, produce_version, replicas.clock.now_ms(), transactional, guard, must_verify,
                        validated,
                    )  # fmt: skip
                    break
                except AppendMustWait as waiting:
                    validated = await waiting.wait(replicas.record_validator)
                if replicas.leader(key, index) is not partition:
                    # The topic was deleted meanwhile, and perhaps created again with other configs. The leadership
                    # may have moved, too.
                    raise KafkaError(replicas.missing_error(key, index))
        except KafkaError as error:
            results.append(replicas.error_result(key, index, error))
        else:
            if end_offset > partition.state.high_watermark:
                await_acknowledgement(partition, end_offset, acks, results, unacknowledged)
            start_offset = partition.log.log_start_offset
            results.append((index, 0, base_offset, append_time_ms, start_offset, NO_RECORD_ERRORS, None))
    if unacknowledged and acks != 0:
        if slices is None:
            return await replicas.delay(response, unacknowledged, timeout_ms)
        large = LargeDelayedProduce(replicas.purgatory, response, unacknowledged, replicas.current_leader)
        await slices.run(large.start_in_steps(replicas.clock.mono_ms() + max(timeout_ms, 0)))
        await large
        await slices.run(large.end_in_steps())
    return response


def all_remaining(topics: list[TopicRecords], response: ProduceResponse) -> Iterator[RemainingBatch]:
    """Yield the batches of a request without copying them, and add their topics to the response."""
    for key, partitions in topics:
        results: list[PartitionResult] = []
        if partitions:
            response.append((key, results))
        for index, records in partitions:
            yield key, index, records, results


def copy_remaining(topics: list[TopicRecords], response: ProduceResponse) -> list[RemainingBatch]:
    """Copy the batches that have no result yet, and add their topics to the response."""
    remaining: list[RemainingBatch] = []
    results_by_position = iter([results for _, results in response])
    for key, partitions in topics:
        if not partitions:
            continue
        results = next(results_by_position, None)
        if results is None:
            results = []
            response.append((key, results))
        for index, records in partitions[len(results) :]:
            copy = None if records is None else memoryview(bytearray(records))
            remaining.append((key, index, copy, results))
    return remaining
