"""Sending, against a partition that loses connections, forgets producers and answers late: each record once."""

import random
from collections import deque

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.connection import RefusedError
from kbroker.pipeline.replay.encoding import MAX_SEQUENCE, Batch, Target, Writer
from kbroker.pipeline.replay.positions import Known, Start, position, position_after
from kbroker.pipeline.replay.producer import Sender
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
from protocol.records.batch import body_of, parse_header, patch_base_offset
from protocol.records.record import iter_records

TARGET = Target("t", 0)
WRITER = Writer(7, 0, 0)


class Partition:
    """A log of batches, and the last sequence of our producer while it is remembered."""

    def __init__(self, dice: random.Random | None = None, before: int = 0) -> None:
        self.dice = dice
        self.first = self.end = before
        self.log: list[tuple[int, bytearray]] = []
        self.last: int | None = None
        self.window: deque[tuple[int, int, int]] = deque(maxlen=5)
        self.largest = 1 << 30
        self.describes = True
        self.refuses: list[ErrorCode] = []

    def chance(self, probability: float) -> bool:
        return self.dice is not None and self.dice.random() < probability

    def produce(self, data: bytearray) -> PartitionProduceResponse:
        header = parse_header(data)
        if self.refuses:
            return PartitionProduceResponse(error_code=self.refuses.pop(0), base_offset=-1)
        if header.size > self.largest:
            return PartitionProduceResponse(error_code=ErrorCode.MESSAGE_TOO_LARGE, base_offset=-1)
        for first, last, base in self.window:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return PartitionProduceResponse(base_offset=base)
        if self.last is not None and header.base_sequence != (self.last + 1) & MAX_SEQUENCE:
            return PartitionProduceResponse(error_code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, base_offset=-1)
        base = self.others(0)
        patch_base_offset(data, 0, base)
        self.log.append((base, data))
        self.end = base + header.count
        self.last = header.last_sequence
        self.window.append((header.base_sequence, header.last_sequence, base))
        return PartitionProduceResponse(base_offset=base)

    def others(self, count: int) -> int:
        """Somebody else's records, of which nothing is remembered here but that they are there."""
        self.end += count
        return self.end

    def forget(self) -> None:
        self.last = None
        self.window.clear()

    def values(self) -> list[bytes]:
        found = []
        for _, data in self.log:
            header = parse_header(data)
            found += [r.value for r in iter_records(body_of(data, 0, header.size), header.count, 0)]
        return found


class Connection:
    """What is posted may arrive or not, and the answer may be lost; a lost connection stays lost."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.answers: deque[object] = deque()
        self.lost = False

    def has(self, key: int) -> bool:
        return self.partition.describes

    def post(self, request: object) -> None:
        assert isinstance(request, ProduceRequest)
        if self.lost:
            raise ConnectionResetError
        if self.partition.chance(0.05):
            self.lost = True
            raise ConnectionResetError
        data = bytearray(request.topic_data[0].partition_data[0].records)
        answer = self.partition.produce(data)
        self.answers.append(ProduceResponse(responses=[TopicProduceResponse(partition_responses=[answer])]))

    def take(self, answer: type) -> object:
        if self.lost or self.partition.chance(0.05):
            self.lost = True
            raise ConnectionResetError
        return self.answers.popleft()

    def ask(self, request: object, answer: type) -> object:
        assert self.lost or not self.answers, "answers are outstanding"
        if self.lost or self.partition.chance(0.05):
            self.lost = True
            raise TimeoutError
        if isinstance(request, ListOffsetsRequest):
            latest = request.topics[0].partitions[0].timestamp == -1
            found = self.partition.end if latest else self.partition.first
            row = ListOffsetsPartitionResponse(offset=found)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(partitions=[row])])
        if isinstance(request, FetchRequest):
            start = request.topics[0].partitions[0].fetch_offset
            records = b"".join(data for base, data in self.partition.log if base + parse_header(data).count > start)
            data = PartitionData(records=records)
            return FetchResponse(responses=[FetchableTopicResponse(partitions=[data])])
        state = [] if self.partition.last is None else [ProducerState(producer_id=7, last_sequence=self.partition.last)]
        row = PartitionResponse(active_producers=state)
        return DescribeProducersResponse(topics=[TopicResponse(partitions=[row])])


class Brokers:
    """One broker with one partition. A late request of a lost connection may still come in."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.connection: Connection | None = None
        self.gone = 0

    def leader(self, topic: str, number: int) -> Connection:
        if self.gone:
            self.gone -= 1
            raise ConnectionRefusedError
        if self.partition.chance(0.02):
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, "t-0")
        if self.connection is None:
            self.connection = Connection(self.partition)
        return self.connection

    def forget(self) -> None:
        self.connection = None
        if self.partition.chance(0.3):
            self.partition.forget()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def sender_of(partition: Partition, start: int = 0, patience_s: float = 60) -> Sender:
    clock = Clock()
    starts = {TARGET: Start(start, start == 0)}
    return Sender(Brokers(partition), WRITER, starts, patience_s=patience_s, clock=clock, pause=clock.pause)  # type: ignore[arg-type]


def batch(first: int, end: int) -> Batch:
    numbers = range(first, end)
    empty: list[bytes | None] = [None] * len(numbers)
    return Batch(TARGET, first, [0] * len(numbers), empty, [b"%d" % n for n in numbers], [b"\0"] * len(numbers))


def send_all(sender: Sender, total: int, dice: random.Random, stop_at: int | None = None) -> None:
    """From where the target is, in batches of any size; killed with some in flight once `stop_at` is reached."""
    at = sender.position(TARGET)
    while at < total:
        end = min(total, at + dice.randrange(1, 9))
        sender.send(batch(at, end))
        at = end
        if stop_at is not None and at >= stop_at:
            return
    sender.flush()


def send_one(sender: Sender, position: int) -> None:
    sender.send(batch(position, position + 1))
    sender.flush()


WANTED = [b"%d" % n for n in range(400)]


def test_all_is_sent_in_order_when_nothing_fails():
    partition = Partition()
    send_all(sender_of(partition), 400, random.Random(1))
    assert partition.values() == WANTED


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("describes", [True, False])
def test_whatever_fails_each_record_is_there_once(seed, describes):
    dice = random.Random(seed)
    partition = Partition(dice, before=dice.choice([0, 1000]))
    partition.describes = describes
    start = partition.end
    # several lives, each but the last cut off with requests in flight; others write meanwhile
    for _ in range(4):
        send_all(sender_of(partition, start), 400, dice, stop_at=dice.randrange(400))
        partition.others(dice.choice([0, 0, 13]))
        if dice.random() < 0.5:
            partition.forget()
    send_all(sender_of(partition, start), 400, dice)
    assert partition.values() == WANTED


@pytest.mark.parametrize("seed", range(10))
def test_two_at_a_time_double_nothing(seed):
    dice = random.Random(seed)
    partition = Partition()
    senders = [sender_of(partition), sender_of(partition)]
    at = [sender.position(TARGET) for sender in senders]
    while min(at) < 400:
        which = dice.choice([n for n in (0, 1) if at[n] < 400])
        end = min(400, at[which] + dice.randrange(1, 9))
        senders[which].send(batch(at[which], end))
        at[which] = end
    for sender in senders:
        sender.flush()
    assert partition.values() == WANTED


def test_batches_that_are_too_large_are_split():
    partition = Partition()
    partition.largest = 300
    sender = sender_of(partition)
    sender.send(batch(0, 100))
    sender.send(batch(100, 400))
    sender.flush()
    assert partition.values() == WANTED
    partition.largest = 10
    with pytest.raises(PipelineError, match=r"record 400 .* larger than the topic allows"):
        send_one(sender, 400)


def test_what_is_in_flight_is_settled_before_a_position_is_asked():
    sender = sender_of(Partition())
    sender.send(batch(0, 10))
    sender.send(batch(10, 30))
    assert sender.position(TARGET) == 30


def test_what_does_not_pass_by_itself_is_told_at_once():
    partition = Partition()
    partition.refuses = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    sender = sender_of(partition)
    with pytest.raises(PipelineError, match="TOPIC_AUTHORIZATION_FAILED"):
        send_all(sender, 400, random.Random(1))


def test_a_broker_that_stays_away_is_told_after_the_patience():
    sender = sender_of(Partition(), patience_s=30)
    sender._brokers.gone = 10**9  # type: ignore[attr-defined]
    with pytest.raises(PipelineError, match="nothing could be sent for 30 s"):
        sender.send(batch(0, 1))


def test_lost_records_are_told():
    partition = Partition()
    sender = sender_of(partition)
    sender.send(batch(0, 10))
    sender.send(batch(10, 20))
    sender.flush()
    # what a power failure leaves: acknowledged, but not there
    partition.log.pop()
    partition.end, partition.last = 10, 9
    with pytest.raises(PipelineError, match="it had 20 before: the broker has lost records"):
        send_one(sender, 20)


def test_where_a_partition_is_when_its_records_are_gone():
    partition = Partition()
    send_all(sender_of(partition), 100, random.Random(1))
    brokers = Brokers(partition)
    partition.forget()
    partition.log.clear()
    partition.first = partition.end
    # nobody else wrote into the empty topic
    assert position(brokers, 7, TARGET, Start(0, True), Known(0, 0)).position == 100  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="records from 0 on were deleted"):
        position(brokers, 7, TARGET, Start(0, False), Known(0, 0))  # type: ignore[arg-type]
    assert position(brokers, 7, TARGET, Start(0, False), Known(100, 100)).position == 100  # type: ignore[arg-type]


def test_positions_beyond_the_largest_sequence():
    assert position_after(9, 10) == 10
    assert position_after(MAX_SEQUENCE, 1 << 31) == 1 << 31
    assert position_after(0, (1 << 31) + 1) == (1 << 31) + 1
    assert position_after(4, (1 << 32) + 5) == (1 << 32) + 5
    # a batch more than the end that was looked at, and others' records
    assert position_after(14, (1 << 31) + 5) == (1 << 31) + 15
    assert position_after(14, 1_000_000) == 15
