"""The rules for topics with delayed delivery and idempotency keys find what they should."""

import pytest

from kbroker.simulation.clients.workloads.queue_rules import BrokenQueue, DelayedRecords, KeyedRecords, SeenRecord

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
