"""The replay's producer against a partition that loses connections and producer state: each record is sent once."""

import random
from collections import deque

import pytest

from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.batch_encoder import MAX_SEQUENCE, ProducerSettings, ReplayBatch
from kbroker.pipeline.replay.producer import (
    Progress,
    ReplayProducer,
    TargetStart,
    position_after_sequence,
    read_progress,
)
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.messages.k01_fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from protocol.messages.k61_describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from protocol.records.batch import body_of, parse_header
from protocol.records.record import iter_records
from tests.sampling import third_of
from tests.unit.support.batch_fields import patch_base_offset

TARGET = TopicPartition("t", 0)
PRODUCER = ProducerSettings(7, 0, 0)
ALL_VALUES = [b"%d" % n for n in range(400)]


class FakePartition:
    """A log of batches, and the state of producer 7. With `dice`, connections to it fail at random."""

    def __init__(self, dice: random.Random | None = None, log_start: int = 0) -> None:
        self.dice = dice
        self.log_start = self.log_end = log_start
        self.log: list[tuple[int, bytearray]] = []
        self.last_sequence: int | None = None
        self.last_batches: deque[tuple[int, int, int]] = deque(maxlen=5)
        self.max_batch_bytes = 1 << 30
        self.has_describe_producers = True
        self.next_errors: list[ErrorCode] = []

    def happens(self, probability: float) -> bool:
        return self.dice is not None and self.dice.random() < probability

    def produce(self, data: bytearray) -> PartitionProduceResponse:
        header = parse_header(data)
        if self.next_errors:
            return PartitionProduceResponse(error_code=self.next_errors.pop(0), base_offset=-1)
        if header.size > self.max_batch_bytes:
            return PartitionProduceResponse(error_code=ErrorCode.MESSAGE_TOO_LARGE, base_offset=-1)
        for first, last, base_offset in self.last_batches:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return PartitionProduceResponse(base_offset=base_offset)
        if self.last_sequence is not None and header.base_sequence != (self.last_sequence + 1) & MAX_SEQUENCE:
            return PartitionProduceResponse(error_code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, base_offset=-1)
        base_offset = self.log_end
        patch_base_offset(data, 0, base_offset)
        self.log.append((base_offset, data))
        self.log_end = base_offset + header.count
        self.last_sequence = header.last_sequence
        self.last_batches.append((header.base_sequence, header.last_sequence, base_offset))
        return PartitionProduceResponse(base_offset=base_offset)

    def append_other_records(self, count: int) -> None:
        """Append records of another producer; only their offsets are kept."""
        self.log_end += count

    def expire_producer(self) -> None:
        self.last_sequence = None
        self.last_batches.clear()

    def values(self) -> list[bytes]:
        values = []
        for _, data in self.log:
            header = parse_header(data)
            values += [record.value for record in iter_records(body_of(data, 0, header.size), header.count, 0)]
        return values


class FakeConnection:
    """Requests and responses may be lost; then the connection stays broken."""

    def __init__(self, partition: FakePartition) -> None:
        self.partition = partition
        self.responses: deque[object] = deque()
        self.is_broken = False

    def supports(self, api_key: int) -> bool:
        return self.partition.has_describe_producers

    def send(self, request: object) -> None:
        assert isinstance(request, ProduceRequest)
        if self.is_broken or self.partition.happens(0.05):
            self.is_broken = True
            raise ConnectionResetError
        data = bytearray(request.topic_data[0].partition_data[0].records)
        response = self.partition.produce(data)
        self.responses.append(ProduceResponse(responses=[TopicProduceResponse(partition_responses=[response])]))

    def receive(self, response_type: type) -> object:
        if self.is_broken or self.partition.happens(0.05):
            self.is_broken = True
            raise ConnectionResetError
        return self.responses.popleft()

    def request(self, request: object, response_type: type) -> object:
        assert self.is_broken or not self.responses, "requests are in flight"
        if self.is_broken or self.partition.happens(0.05):
            self.is_broken = True
            raise TimeoutError
        if isinstance(request, ListOffsetsRequest):
            is_latest = request.topics[0].partitions[0].timestamp == -1
            offset = self.partition.log_end if is_latest else self.partition.log_start
            listed = ListOffsetsPartitionResponse(offset=offset)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(partitions=[listed])])
        if isinstance(request, FetchRequest):
            start = request.topics[0].partitions[0].fetch_offset
            records = b"".join(data for base, data in self.partition.log if base + parse_header(data).count > start)
            fetched = PartitionData(records=records)
            return FetchResponse(responses=[FetchableTopicResponse(partitions=[fetched])])
        last = self.partition.last_sequence
        producers = [] if last is None else [ProducerState(producer_id=7, last_sequence=last)]
        described = PartitionResponse(active_producers=producers)
        return DescribeProducersResponse(topics=[TopicResponse(partitions=[described])])


class FakeCluster:
    """One broker with one partition."""

    def __init__(self, partition: FakePartition) -> None:
        self.partition = partition
        self.connection: FakeConnection | None = None
        self.failing_connects = 0

    def leader(self, topic: str, number: int) -> FakeConnection:
        if self.failing_connects:
            self.failing_connects -= 1
            raise ConnectionRefusedError
        if self.partition.happens(0.02):
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "t-0")
        if self.connection is None:
            self.connection = FakeConnection(self.partition)
        return self.connection

    def reset(self) -> None:
        self.connection = None
        if self.partition.happens(0.3):
            self.partition.expire_producer()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def producer_for(partition: FakePartition, start: int = 0, patience_s: float = 60) -> ReplayProducer:
    clock = Clock()
    starts = {TARGET: TargetStart(start, start == 0)}
    cluster = FakeCluster(partition)
    return ReplayProducer(cluster, PRODUCER, starts, patience_s=patience_s, clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]


def batch(first: int, end: int) -> ReplayBatch:
    numbers = range(first, end)
    nulls: list[bytes | None] = [None] * len(numbers)
    values = [b"%d" % n for n in numbers]
    return ReplayBatch(TARGET, first, [0] * len(numbers), nulls, values, [b"\0"] * len(numbers))


def send_all(producer: ReplayProducer, total: int, dice: random.Random, stop_at: int | None = None) -> None:
    """Send from the target's position on, in batches of random sizes; stop with requests in flight at `stop_at`."""
    position = producer.position(TARGET)
    while position < total:
        end = min(total, position + dice.randrange(1, 9))
        producer.send(batch(position, end))
        position = end
        if stop_at is not None and position >= stop_at:
            return
    producer.flush()


def send_one(producer: ReplayProducer, position: int) -> None:
    producer.send(batch(position, position + 1))
    producer.flush()


def test_records_are_sent_in_order():
    partition = FakePartition()
    send_all(producer_for(partition), 400, random.Random(1))
    assert partition.values() == ALL_VALUES


@pytest.mark.parametrize("seed", third_of(range(40)))
@pytest.mark.parametrize("has_describe_producers", [True, False])
def test_each_record_is_sent_once_after_any_failure(seed, has_describe_producers):
    dice = random.Random(seed)
    partition = FakePartition(dice, log_start=dice.choice([0, 1000]))
    partition.has_describe_producers = has_describe_producers
    start = partition.log_end
    # several runs, each but the last killed with requests in flight; another producer writes in between
    for _ in range(4):
        send_all(producer_for(partition, start), 400, dice, stop_at=dice.randrange(400))
        partition.append_other_records(dice.choice([0, 0, 13]))
        if dice.random() < 0.5:
            partition.expire_producer()
    send_all(producer_for(partition, start), 400, dice)
    assert partition.values() == ALL_VALUES


@pytest.mark.parametrize("seed", third_of(range(10)))
def test_two_copies_of_a_task_duplicate_nothing(seed):
    dice = random.Random(seed)
    partition = FakePartition()
    producers = [producer_for(partition), producer_for(partition)]
    positions = [producer.position(TARGET) for producer in producers]
    while min(positions) < 400:
        number = dice.choice([n for n in (0, 1) if positions[n] < 400])
        end = min(400, positions[number] + dice.randrange(1, 9))
        producers[number].send(batch(positions[number], end))
        positions[number] = end
    for producer in producers:
        producer.flush()
    assert partition.values() == ALL_VALUES


def test_batches_that_are_too_large_are_split():
    partition = FakePartition()
    partition.max_batch_bytes = 300
    producer = producer_for(partition)
    producer.send(batch(0, 100))
    producer.send(batch(100, 400))
    producer.flush()
    assert partition.values() == ALL_VALUES
    partition.max_batch_bytes = 10
    with pytest.raises(PipelineError, match=r"record 400 .* is larger than the topic's max\.message\.bytes"):
        send_one(producer, 400)


def test_position_waits_for_the_batches_in_flight():
    producer = producer_for(FakePartition())
    producer.send(batch(0, 10))
    producer.send(batch(10, 30))
    assert producer.position(TARGET) == 30


def test_an_error_that_is_not_retriable_is_raised_at_once():
    partition = FakePartition()
    partition.next_errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    producer = producer_for(partition)
    with pytest.raises(PipelineError, match="TOPIC_AUTHORIZATION_FAILED"):
        send_all(producer, 400, random.Random(1))


def test_an_unreachable_broker_is_an_error_after_patience_s():
    producer = producer_for(FakePartition(), patience_s=30)
    producer._cluster.failing_connects = 10**9  # type: ignore[attr-defined]
    with pytest.raises(PipelineError, match="nothing could be sent for 30 s"):
        producer.send(batch(0, 1))


def test_lost_records_are_an_error():
    partition = FakePartition()
    producer = producer_for(partition)
    producer.send(batch(0, 10))
    producer.send(batch(10, 20))
    producer.flush()
    # A power failure can lose acknowledged records.
    partition.log.pop()
    partition.log_end, partition.last_sequence = 10, 9
    with pytest.raises(PipelineError, match="ends at offset 10, before it ended at 20: the broker has lost records"):
        send_one(producer, 20)


def test_progress_after_the_records_and_the_producer_state_are_gone():
    partition = FakePartition()
    send_all(producer_for(partition), 100, random.Random(1))
    cluster = FakeCluster(partition)
    partition.expire_producer()
    partition.log.clear()
    partition.log_start = partition.log_end

    def position(start: TargetStart, known: Progress) -> int:
        return read_progress(cluster, 7, TARGET, start, known).position  # type: ignore[arg-type]

    # The partition was empty, so all deleted records were the replay's.
    assert position(TargetStart(0, True), Progress(0, 0)) == 100
    with pytest.raises(PipelineError, match="records from offset 0 on were deleted"):
        position(TargetStart(0, False), Progress(0, 0))
    assert position(TargetStart(0, False), Progress(100, 100)) == 100


def test_positions_beyond_the_largest_sequence_number():
    assert position_after_sequence(9, 10) == 10
    assert position_after_sequence(MAX_SEQUENCE, 1 << 31) == 1 << 31
    assert position_after_sequence(0, (1 << 31) + 1) == (1 << 31) + 1
    assert position_after_sequence(4, (1 << 32) + 5) == (1 << 32) + 5
    # The end offset was read before another batch was appended; and with records of other producers.
    assert position_after_sequence(14, (1 << 31) + 5) == (1 << 31) + 15
    assert position_after_sequence(14, 1_000_000) == 15
