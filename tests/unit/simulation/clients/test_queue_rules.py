"""The rules for topics with queue features report each kind of wrong read."""

import pytest

from kbroker.simulation.clients.workloads.queue_rules import (
    BrokenQueue,
    DelayedRecords,
    ForwardedRecords,
    KeyedRecords,
    PendingDelayedRecord,
    SeenRecord,
)
from kbroker.simulation.clients.workloads.queue_topics import check_view

# Value 1 is immediate, 2 is due at a time, 3 after a delay; 4 was not acknowledged.
IMMEDIATE, DUE, DELAYED = SeenRecord(0, 1, 100), SeenRecord(3, 2, 205, 200, 1), SeenRecord(4, 3, 205, 200, 2)


def delayed() -> DelayedRecords:
    rules = DelayedRecords()
    rules.send({1: None, 2: 200, 3: 0, 4: None})
    rules.acknowledge([1, 2, 3], 0)
    return rules


def test_delayed_records_that_are_right() -> None:
    rules = delayed()
    rules.read([IMMEDIATE, DUE])
    assert not rules.is_complete()
    rules.read([IMMEDIATE, DUE, DELAYED])
    assert rules.is_complete()
    rules.check_log([IMMEDIATE, DUE, DELAYED])


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
        delayed().check_log(log)


def test_what_a_consumer_has_read_stays() -> None:
    rules = delayed()
    rules.read([IMMEDIATE, SeenRecord(1, 4, 100)])
    with pytest.raises(BrokenQueue, match="offset 1 has"):
        rules.read([SeenRecord(1, 1, 100)])
    with pytest.raises(BrokenQueue, match="are gone"):
        rules.check_log([IMMEDIATE, DUE, DELAYED])


def test_keys() -> None:
    rules = KeyedRecords()
    for value, key in ((1, 7), (2, 7), (3, 8)):
        rules.send(value, key)
    rules.acknowledge([1], 0)
    rules.acknowledge([2], 0)
    first, other = SeenRecord(0, 1, 100), SeenRecord(1, 3, 100)
    rules.check([first, other])
    with pytest.raises(BrokenQueue, match="key 7 is stored twice"):
        rules.check([first, other, SeenRecord(2, 2, 100)])
    with pytest.raises(BrokenQueue, match=r"were acknowledged with offset 0, and are at \[1\]"):
        rules.check([SeenRecord(1, 1, 100)])
    with pytest.raises(BrokenQueue, match="was not sent"):
        rules.check([SeenRecord(0, 5, 100)])


def batch_of_keys(keys: list[int], base_offset: int) -> KeyedRecords:
    rules = KeyedRecords()
    for value, key in enumerate((*keys, 1, 2, 3)):
        rules.send(value, key)
    rules.acknowledge(range(len(keys)), base_offset)
    return rules


# Keys 1, 2 and 3 are at the offsets 0, 1 and 3.
KEYED_LOG = [SeenRecord(0, 3, 100), SeenRecord(1, 4, 100), SeenRecord(3, 5, 100)]


@pytest.mark.parametrize(("keys", "base_offset"), [([1, 2, 3], -3), ([2, 1, 3], -3), ([2, 2, 3], -3)])
def test_an_offset_that_a_response_cannot_express_is_negative(keys: list[int], base_offset: int) -> None:
    batch_of_keys(keys, base_offset).check(KEYED_LOG)
    for wrong in (0, 1, -1, -2):
        with pytest.raises(BrokenQueue, match=rf"were acknowledged with offset {wrong}, and are at"):
            batch_of_keys(keys, wrong).check(KEYED_LOG)


def test_consecutive_offsets_are_known() -> None:
    rules = KeyedRecords()
    for value, key in ((1, 1), (2, 2), (3, 1), (4, 2)):
        rules.send(value, key)
    rules.acknowledge([1, 2], 0)
    log = [SeenRecord(0, 1, 100), SeenRecord(1, 2, 100)]
    rules.check(log)
    with pytest.raises(BrokenQueue, match=r"keys \[2\] were acknowledged, and are not stored"):
        rules.check(log[:1])
    rules.acknowledge([3, 4], -2)
    with pytest.raises(BrokenQueue, match=r"keys \(1, 2\) were acknowledged without offsets, and are at \[0, 1\]"):
        rules.check(log)


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


# Value 1 is immediate, 2 is due at 200, and 3 to 6 much later. 6 was not acknowledged.
LATER = 1_000
NOW = 500
KEPT = [PendingDelayedRecord(20, 3, LATER), PendingDelayedRecord(4, 5, LATER)]


def retained() -> DelayedRecords:
    rules = DelayedRecords()
    rules.send({1: None, 2: 200, 3: LATER, 4: LATER, 5: LATER, 6: LATER})
    rules.acknowledge([1, 2, 3, 4, 5], 0)
    rules.change(4)
    rules.cancelled(4)
    return rules


def test_retained_records_that_are_right() -> None:
    rules = retained()
    rules.read([IMMEDIATE, DUE])
    rules.check_pending(KEPT, NOW)
    # It was stored, although the response was lost.
    rules.check_pending([*KEPT, PendingDelayedRecord(5, 6, LATER)], NOW)
    rules.delete_below(4)
    rules.check_pending(KEPT[1:], NOW)
    rules.change(5)
    rules.check_pending([], NOW)
    # Delivered by the operator.
    rules.read([SeenRecord(21, 5, 300, LATER, 4)])


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ([IMMEDIATE, IMMEDIATE._replace(value=2)], "offset 0 has"),
        ([SeenRecord(21, 3, 300, LATER, 2)], "700 ms early"),
        ([SeenRecord(21, 4, LATER, LATER, 3)], "value 4 was cancelled, and delivered at offset 21"),
    ],
)
def test_retained_records_that_are_wrong(log: list[SeenRecord], reason: str) -> None:
    with pytest.raises(BrokenQueue, match=reason):
        retained().read(log)


@pytest.mark.parametrize(
    ("pending", "reason"),
    [
        (KEPT[1:], "value 3 was acknowledged at offset 2, is due at 1000, and is gone"),
        ([*KEPT, PendingDelayedRecord(2, 3, LATER)], "value 3 is pending twice: at offsets 20 and 2"),
        ([*KEPT, PendingDelayedRecord(1, 2, 200)], "value 2 is pending, and was delivered at offset 3"),
        ([*KEPT, PendingDelayedRecord(3, 4, LATER)], "value 4 is pending, and was cancelled"),
        ([*KEPT, PendingDelayedRecord(5, 6, LATER + 1)], "value 6 is pending until 1001, and is due at 1000"),
    ],
)
def test_pending_records_that_are_wrong(pending: list[PendingDelayedRecord], reason: str) -> None:
    rules = retained()
    rules.read([DUE])
    with pytest.raises(BrokenQueue, match=reason):
        rules.check_pending(pending, NOW)
