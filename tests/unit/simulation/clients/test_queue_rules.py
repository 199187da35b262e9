"""The rules for topics with what Kafka does not have find what they should."""

import pytest

from kbroker.simulation.clients.queues.closing_rules import ForwardedRecords
from kbroker.simulation.clients.queues.queue_rules import BrokenQueue, DelayedRecords, KeyedRecords, SeenRecord
from kbroker.simulation.clients.queues.view_workload import check_view

# Value 1 is immediate, 2 is due at a time, 3 after a delay; 4 was not acknowledged.
IMMEDIATE, DUE, DELAYED = SeenRecord(0, 1, 100), SeenRecord(3, 2, 205, 200, 1), SeenRecord(4, 3, 205, 200, 2)


def delayed() -> DelayedRecords:
    rules = DelayedRecords()
    rules.send({1: None, 2: 200, 3: 0, 4: None})
    rules.acknowledge([1, 2, 3])
    return rules


def test_delayed_records_that_are_right() -> None:
    rules = delayed()
    assert not rules.is_complete([IMMEDIATE, DUE])
    assert rules.is_complete([IMMEDIATE, DUE, DELAYED])
    rules.read([IMMEDIATE])
    rules.check([IMMEDIATE, DUE, DELAYED])


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ([IMMEDIATE, DUE, DELAYED, DELAYED._replace(offset=5)], "value 3 is there twice"),
        ([IMMEDIATE, DUE._replace(timestamp=199)], "1 ms early"),
        ([IMMEDIATE, DUE._replace(due_ms=201)], "was due at 200"),
        ([IMMEDIATE, SeenRecord(1, 3, 100)], "was not delayed"),
        ([IMMEDIATE._replace(due_ms=50, stored_at=0)], "was due at None"),
        ([IMMEDIATE, DELAYED._replace(offset=3), DUE._replace(offset=4)], "1 was delivered after 2"),
        ([IMMEDIATE._replace(value=9)], "was not sent"),
    ],
)
def test_delayed_records_that_are_wrong(log: list[SeenRecord], reason: str) -> None:
    with pytest.raises(BrokenQueue, match=reason):
        delayed().check(log)


def test_what_a_consumer_has_read_stays() -> None:
    rules = delayed()
    rules.read([IMMEDIATE, SeenRecord(1, 4, 100)])
    with pytest.raises(BrokenQueue, match="offset 1 has"):
        rules.read([SeenRecord(1, 1, 100)])
    with pytest.raises(BrokenQueue, match="are gone"):
        rules.check([IMMEDIATE, DUE, DELAYED])


def test_keys() -> None:
    rules = KeyedRecords()
    for value, key in ((1, 7), (2, 7), (3, 8)):
        rules.send(value, key)
    rules.acknowledge(1, 0)
    rules.acknowledge(2, 0)
    first, other = SeenRecord(0, 1, 100), SeenRecord(1, 3, 100)
    rules.check([first, other])
    with pytest.raises(BrokenQueue, match="key 7 is stored twice"):
        rules.check([first, other, SeenRecord(2, 2, 100)])
    with pytest.raises(BrokenQueue, match="was acknowledged with offset 0, and is at 1"):
        rules.check([SeenRecord(1, 1, 100)])
    with pytest.raises(BrokenQueue, match="was not sent"):
        rules.check([SeenRecord(0, 5, 100)])


def test_keys_of_a_batch_with_several_records_are_stored() -> None:
    rules = KeyedRecords()
    for value, key in ((1, 1), (2, 2), (3, 2)):
        rules.send(value, key)
    rules.acknowledge_batch([1, 2, 3])
    rules.check([SeenRecord(0, 1, 100), SeenRecord(1, 2, 100)])
    with pytest.raises(BrokenQueue, match=r"keys \[2\] were acknowledged, and are not stored"):
        rules.check([SeenRecord(0, 1, 100)])


def test_a_view_has_the_selected_records_of_its_source() -> None:
    source = [SeenRecord(offset, offset, 100) for offset in range(7)]
    check_view("v", [source[0], source[3], source[6]], source)
    with pytest.raises(BrokenQueue, match=r"missing.*value=3"):
        check_view("v", [source[0], source[6]], source)
    with pytest.raises(BrokenQueue, match=r"wrong.*value=4"):
        check_view("v", [source[0], source[3], source[4], source[6]], source)
    with pytest.raises(BrokenQueue):
        check_view("v", [source[0], source[3], source[3], source[6]], source)


def test_records_of_closing_partitions_are_in_one_place() -> None:
    rules = ForwardedRecords()
    rules.send([1, 2], (0, 2))
    rules.send([3], (0, 1))
    rules.acknowledge([1, 3])
    rules.read(2, [SeenRecord(5, 1, 100)])
    assert not rules.is_complete()
    rules.read(0, [SeenRecord(0, 3, 100)])
    rules.read(0, [SeenRecord(0, 3, 100)])
    assert rules.is_complete()
    with pytest.raises(BrokenQueue, match="value 1 is there twice"):
        rules.read(0, [SeenRecord(1, 1, 100)])
    with pytest.raises(BrokenQueue, match="value 3 is there twice"):
        rules.read(0, [SeenRecord(1, 3, 100)])
    with pytest.raises(BrokenQueue, match="which was not sent"):
        rules.read(0, [SeenRecord(1, 4, 100)])


def test_records_of_a_producer_are_in_order() -> None:
    rules = ForwardedRecords()
    rules.send([1, 3], (0, 2))
    rules.send([2], (0, 1))
    rules.check_order([SeenRecord(0, 2, 100), SeenRecord(1, 1, 100), SeenRecord(2, 3, 100)])
    with pytest.raises(BrokenQueue, match="is behind"):
        rules.check_order([SeenRecord(0, 3, 100), SeenRecord(1, 1, 100)])


def test_transactions_on_closing_partitions_are_seen_as_a_whole_or_not_at_all() -> None:
    rules = ForwardedRecords()
    rules.send([1, 2, 3, 4], (0, 2))
    rules.end_unknown([1, 2])
    rules.end_unknown([3])
    rules.abort([4])
    assert rules.is_complete()
    rules.read(2, [SeenRecord(5, 1, 100)])
    assert not rules.is_complete()
    rules.read(0, [SeenRecord(7, 2, 100)])
    assert rules.is_complete()
    with pytest.raises(BrokenQueue, match="has 4, which was aborted"):
        rules.read(0, [SeenRecord(8, 4, 100)])
    with pytest.raises(BrokenQueue, match=r"the values \[1\] were read, and then aborted"):
        rules.abort([1])
