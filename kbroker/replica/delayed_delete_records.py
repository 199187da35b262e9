"""DeleteRecords: deletion from the leader's log, and requests that wait until all live replicas have deleted, too."""

from collections.abc import Callable
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.replica.partition import Partition
from kbroker.runtime.delayed_response import DelayedResponse, Purgatory
from protocol.errors import ErrorCode
from protocol.messages.k21_delete_records import DeleteRecordsPartitionResult


def delete_from_log(partition: Partition, offset: int) -> None:
    """Delete the records below `offset` (-1: the high watermark). Raises KafkaError."""
    log = partition.log
    if log.health.offline is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.health.offline)
    high_watermark = partition.high_watermark
    if offset == -1:
        offset = high_watermark
    if not 0 <= offset <= high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if partition.forwarding is not None and partition.retention_limit is not None:
        # What a closing partition has not forwarded yet was acknowledged, and no consumer has seen it.
        offset = min(offset, partition.retention_limit(0))
    if offset > log.log_start_offset:
        log.delete_records(offset)
        partition.notify_all()


class DeletedRecords(NamedTuple):
    """Records that the leader has deleted, up to `offset`. `result` is completed when the followers have, too."""

    partition: Partition
    offset: int
    result: DeleteRecordsPartitionResult


class DelayedDeleteRecords(DelayedResponse[None]):
    """Waits for the low watermarks of partitions: the lowest log start offset of the leader and its live followers.

    A follower that cannot delete now adopts the leader's log start offset when it fetches again. `check` has to be
    called when a log start offset, the live brokers or the leader of a partition changes.
    """

    __slots__ = ("_is_alive", "_waiting")

    def __init__(self, purgatory: Purgatory, deleted: list[DeletedRecords], is_alive: Callable[[int], bool]) -> None:
        super().__init__(purgatory)
        self._waiting = deleted
        self._is_alive = is_alive

    def check(self) -> None:
        """Complete the results that wait no more, and the request with the last of them."""
        self._waiting = [waiting for waiting in self._waiting if not self._is_complete(waiting)]
        if not self._waiting and not self.is_done:
            self.complete(None)

    def _is_complete(self, waiting: DeletedRecords) -> bool:
        partition, offset, result = waiting
        if not partition.is_leader:
            result.error_code, result.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            return True
        result.low_watermark = low_watermark(partition, self._is_alive)
        return result.low_watermark >= offset

    def expire(self) -> None:
        for waiting in self._waiting:
            waiting.result.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._waiting = []
        self.complete(None)


def low_watermark(partition: Partition, is_alive: Callable[[int], bool]) -> int:
    """Return the lowest log start offset of a partition's live replicas; -1 if one is not known yet."""
    followers = partition.state.followers.values()
    starts = [follower.log_start_offset for follower in followers if is_alive(follower.broker_id)]
    return min(partition.log.log_start_offset, *starts) if starts else partition.log.log_start_offset
