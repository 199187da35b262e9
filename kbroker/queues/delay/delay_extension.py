"""The partitions with delayed delivery: their append extensions, and the start and stop of their delivery.

The extension appends producers' batches, and marks those with delayed records. A batch is never split, so the
producer's offsets, sequences and transactions are the same as for any other batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.config.queue_configs import levels_ms
from kbroker.queues.delay.delay_batches import DELAY_HEADERS, PRIVATE_BITS, parse_due_time, rebuild_ahead, store_delayed
from kbroker.queues.delay.delivery import DelayedDelivery, DelayMetrics
from kbroker.queues.delay.pending_records import Pending
from kbroker.queues.delay.snapshots import FollowerSnapshots
from kbroker.queues.record_headers import InvalidHeaderError, check_names, walk_headers
from kbroker.replica.partition import Partition
from kbroker.replica.partition_extensions import AppendResult
from kbroker.replica.produce.record_rules import InspectedBatch, invalid_record, too_large
from kbroker.replica.produce.slow_validation import must_rewrite
from kbroker.runtime.environment import Clock, Environment
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.records.batch import BatchHeader, parse_header
from protocol.records.record import Header


class Delays(NamedTuple):
    """The delayed records of a batch that arrived at a time in ms: (due time in ms, index) of each."""

    arrival_ms: int
    dues: list[Pending]


class DelayExtension:
    """The AppendExtension of such a partition. Appends do not depend on the pending records, so they never wait."""

    def __init__(self, clock: Clock, partition: Partition, delivery: DelayedDelivery) -> None:
        self.config = partition.log.config
        self._partition = partition
        self._clock = clock
        self._delivery = delivery

    @property
    def is_ready(self) -> bool:
        return True

    async def wait_until_ready(self) -> None:
        """Return at once."""

    def inspect(self, body: Buffer, header: BatchHeader, pause: Callable[[], None]) -> object:
        """Return the delays of the records. Raises KafkaError for invalid headers and for delays that are too long."""
        if header.attributes & PRIVATE_BITS:
            raise invalid_record("Clients are not allowed to set attributes of delayed records.")
        # A large batch is appended later, but it arrives now: so its append does not take time for each record.
        arrival_ms = header.max_timestamp if header.is_log_append_time else self._clock.now_ms()
        dues: list[Pending] = []
        largest = 0
        levels, max_ms = levels_ms(self.config.kbroker_delay_levels), self.config.kbroker_delay_max_ms

        def visit(index: int, headers: Sequence[Header], start: int, end: int) -> None:
            nonlocal largest
            due_ms = parse_due_time(headers, levels, arrival_ms)
            if due_ms is None:
                check_names(headers, DELAY_HEADERS)
                return
            if due_ms - arrival_ms > max_ms:
                raise InvalidHeaderError(f"A delay of {due_ms - arrival_ms} ms exceeds kbroker.delay.max.ms, {max_ms}.")
            largest = max(largest, end - start)
            if due_ms > arrival_ms:
                dues.append((due_ms, index))

        walk_headers(body, header, visit, pause)
        if largest > self.config.max_message_bytes:
            # Records are delivered uncompressed.
            raise too_large(largest, self.config)
        return Delays(arrival_ms, dues)

    def append(self, batch: InspectedBatch, stored: AppendResult | None, now_ms: int) -> AppendResult:
        """Append the batch, unless it is a duplicate (`stored`)."""
        if stored is not None:
            return stored
        data, header, append_time_ms = batch.validated
        delays = batch.inspection
        assert isinstance(delays, Delays)
        arrival_ms, dues = delays
        is_ahead = header.max_timestamp > arrival_ms and not header.is_log_append_time
        if is_ahead and 0 < len(dues) < header.count:
            data = self._rebuild_ahead(batch, delays)
            header = parse_header(data)
        elif dues:
            store_delayed(data, header, len(dues) == header.count, arrival_ms)
            header = parse_header(data)
        prepared: list[PreparedBatch] = [(data, header, None)]
        base_offset = self._partition.append_batches(prepared, now_ms)
        self._delivery.on_appended(header, base_offset, dues)
        return base_offset, base_offset + header.last_offset_delta + 1, append_time_ms

    def _rebuild_ahead(self, batch: InspectedBatch, delays: Delays) -> bytearray:
        """Raises AppendMustWait for a large batch."""
        if batch.rewritten is not None:
            return batch.rewritten[1]
        build = partial(rebuild_ahead, header=batch.validated[1], dues=delays.dues, arrival_ms=delays.arrival_ms)
        if batch.body is not None:
            return build(batch.body)
        raise must_rewrite(batch, self.config, None, build)

    def on_markers(self, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        """Wake the delivery: a committed transaction may have records that are due."""
        self._delivery.wake()


class DelayedTopics:
    """Starts and stops delivery when this broker becomes the leader of a partition, or stops leading it."""

    def __init__(self, environment: Environment) -> None:
        self.metrics = DelayMetrics()
        self._environment = environment
        self._deliveries: dict[Partition, DelayedDelivery] = {}
        self._followed: dict[Partition, FollowerSnapshots] = {}

    def configure(self, partition: Partition) -> DelayExtension | None:
        """Apply the configs and the role of a partition: start or stop its delivery and its follower snapshots.

        Returns its append extension; None if the topic has no delay, or this broker does not lead the partition.
        """
        delivery = self._deliveries.get(partition)
        is_enabled = partition.log.config.kbroker_delay_enable and not partition.is_closed
        if delivery is not None and not (is_enabled and delivery.is_leading):
            delivery.stop()
            del self._deliveries[partition]
            delivery = None
        self._configure_follower(partition, is_enabled and not partition.is_leader)
        if not is_enabled:
            return None
        partition.retention_limit = partial(self._retention_limit, partition)
        if delivery is None and partition.is_leader:
            delivery = self._deliveries[partition] = DelayedDelivery(self._environment, partition, self.metrics)
            delivery.start()
        if delivery is None:
            return None
        return DelayExtension(self._environment.clock, partition, delivery)

    def _configure_follower(self, partition: Partition, is_following: bool) -> None:
        if is_following and partition not in self._followed:
            snapshots = self._followed[partition] = FollowerSnapshots(self._environment, partition)
            snapshots.start()
        elif not is_following and partition in self._followed:
            self._followed.pop(partition).stop()

    def delivery_of(self, partition: Partition) -> DelayedDelivery | None:
        """Return the delivery of a partition that this broker leads; None if its topic has no delay."""
        return self._deliveries.get(partition)

    def deliveries(self) -> dict[Partition, DelayedDelivery]:
        return self._deliveries

    @property
    def pending_count(self) -> int:
        return sum([delivery.state.count for delivery in self._deliveries.values()])

    def _retention_limit(self, partition: Partition, now_ms: int) -> int:
        """Return the offset below which retention may delete. A follower deletes only what its leader has deleted."""
        delivery = self._deliveries.get(partition)
        return partition.log.log_start_offset if delivery is None else delivery.retention_limit(now_ms)

    async def stop(self) -> None:
        """Stop all deliveries, and write their snapshots."""
        deliveries, self._deliveries = list(self._deliveries.values()), {}
        followed, self._followed = list(self._followed.values()), {}
        for snapshots in followed:
            await snapshots.stop_and_wait()
        for delivery in deliveries:
            await delivery.stop_and_wait()
