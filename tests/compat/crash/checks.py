"""Reads topics to their ends, and checks them against what producers sent and what was acknowledged to them."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.compat.crash.background_producers import VALUE, BackgroundProducer, Ledger, Record
from tests.compat.crash.stored_epochs import StoredEpoch
from tests.compat.support import DEADLINE_S, eventually

# (offset, key, value) of the records of each partition.
TopicRecords = list[list[tuple[int, bytes | None, bytes]]]
# The offsets at which each record is found.
StoredOffsets = dict[Record, list[int]]
Check = Callable[[Ledger, StoredOffsets], None]


def wait_for_acknowledgements(producer: BackgroundProducer, additional: int) -> None:
    """Wait until `additional` further records have been acknowledged in every partition."""
    ledger = producer.ledger
    targets = [count + additional for count in ledger.counts]

    def reached() -> bool:
        return all(count >= target for count, target in zip(ledger.counts, targets, strict=True))

    eventually(
        reached,
        f"{additional} more records acknowledged in each partition",
        interval=0.01,
        progress=lambda: len(ledger.acknowledged),
    )


def read_topic(bootstrap: str, topic: str, partitions: int) -> TopicRecords:
    """Return the records of each partition, from its start to its end, in order."""
    return read_topics(bootstrap, {topic: partitions})[topic]


def _bounds(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset and the end of a partition. Its leader may be changing: the call does not retry."""
    found: list[tuple[int, int]] = []

    def is_known() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(partition, timeout=DEADLINE_S))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
        return bool(found)

    eventually(is_known, f"the end of {partition}")
    return found[0]


def read_topics(bootstrap: str, topics: dict[str, int]) -> dict[str, TopicRecords]:
    """Read several topics as `read_topic` does. `topics`: the number of partitions by name."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    partitions = [TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)]
    records: dict[str, TopicRecords] = {topic: [[] for _ in range(count)] for topic, count in topics.items()}
    try:
        bounds = [_bounds(consumer, tp) for tp in partitions]
        starts = zip(partitions, bounds, strict=True)
        consumer.assign([TopicPartition(tp.topic, tp.partition, low) for tp, (low, _) in starts])
        remaining = sum(high - low for low, high in bounds)

        def is_complete() -> bool:
            nonlocal remaining
            for message in consumer.consume(1000, timeout=0.2):
                if message.error():
                    raise KafkaException(message.error())
                remaining -= 1
                part = records[message.topic()][message.partition()]
                part.append((message.offset(), message.key(), message.value()))
            return remaining <= 0

        description = f"{remaining} records of {', '.join(topics)}"
        eventually(is_complete, description, interval=0, progress=lambda: remaining)
    finally:
        consumer.close()
    for tp, (low, high) in zip(partitions, bounds, strict=True):
        offsets = [offset for offset, _, _ in records[tp.topic][tp.partition]]
        assert offsets == list(range(low, high)), f"offsets of {tp.topic}-{tp.partition} without gaps"
    return records


def offsets_of(ledger: Ledger, records: TopicRecords) -> StoredOffsets:
    """Return the offsets of each record of a producer."""
    offsets: StoredOffsets = {}
    for partition, part in enumerate(records):
        for offset, key, value in part:
            match = VALUE.match(value)
            assert match is not None, f"a value that no producer sent: {value!r}"
            if match[1] == ledger.name.encode():
                number = int(match[3])
                assert int(match[2]) == partition
                assert number < ledger.sent[partition]
                assert key == b"key-%d" % (number % 7)
                offsets.setdefault((partition, number), []).append(offset)
    return offsets


def check_nothing_lost(ledger: Ledger, stored: StoredOffsets) -> None:
    """Check that every acknowledged record is stored at the offset of its response."""
    lost = [record for record in ledger.acknowledged if record not in stored]
    assert lost == [], f"{len(lost)} acknowledged records are lost"
    moved = [r for r, offset in ledger.acknowledged.items() if offset is not None and offset not in stored[r]]
    assert moved == [], f"{len(moved)} records are not at the offset that was acknowledged"


def check_exactly_once(
    ledger: Ledger, stored: StoredOffsets, epoch_of: Callable[[int, int], StoredEpoch] | None = None
) -> int:
    """Check that no record is stored twice, acknowledged or not, and that each partition is in the order of sending.

    With `epoch_of`, which returns what has written the record of a partition and an offset, further copies are
    permitted if the same producer has written each of them in a higher epoch than the copy before, as librdkafka does
    after it has increased its epoch (docs/exactly-once.md). Returns the number of records with such copies.
    """
    check_nothing_lost(ledger, stored)
    copies = {record: offsets for record, offsets in stored.items() if len(offsets) > 1}
    duplicates = {
        record: offsets
        for record, offsets in copies.items()
        if epoch_of is None or not _is_sent_in_higher_epochs([epoch_of(record[0], offset) for offset in offsets])
    }
    assert duplicates == {}, f"{len(duplicates)} records are stored more than once: {list(duplicates.items())[:10]}"
    for partition in range(ledger.partitions):
        order = sorted((offsets[0], record[1]) for record, offsets in stored.items() if record[0] == partition)
        numbers = [number for _, number in order]
        assert numbers == sorted(numbers), f"partition {partition} is not in order"
    return len(copies)


def _is_sent_in_higher_epochs(copies: Sequence[StoredEpoch]) -> bool:
    """Return whether one idempotent producer has written all copies of a record, each in a higher epoch."""
    return all(
        before.producer_id == copy.producer_id >= 0 and before.epoch < copy.epoch for before, copy in pairwise(copies)
    )
