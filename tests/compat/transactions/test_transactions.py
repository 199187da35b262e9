"""Transactions of each client, and what consumers of both isolation levels read."""

from contextlib import suppress

import pytest

from tests.compat.support import eventually, unique
from tests.compat.transactions.clients import ABORTABLE, COMMITTED, FENCED, UNCOMMITTED, TransactionError

pytestmark = pytest.mark.feature("transactions")


def started(client, transactional_id, **settings):
    producer = client.transactional_producer(transactional_id, **settings)
    producer.init()
    return producer


def transact(producer, topic, values, commit=True):
    producer.begin()
    for value in values:
        producer.send(topic, value)
    producer.commit() if commit else producer.abort()


def error_of(call, *args):
    with pytest.raises(TransactionError) as raised:
        call(*args)
    return raised.value


def test_records_become_visible_with_the_commit(client, topic, transactional_id):
    name = topic()
    producer = started(client, transactional_id)
    producer.begin()
    producer.send(name, b"one")
    producer.send(name, b"two")
    producer.flush()
    assert client.read(name, UNCOMMITTED) == [[b"one", b"two"]]
    assert client.end(name, UNCOMMITTED) == 2
    assert client.end(name, COMMITTED) == 0
    assert client.read(name, COMMITTED) == [[]]
    producer.commit()
    eventually(lambda: client.end(name, COMMITTED) == 3, "the marker")
    assert client.read(name, COMMITTED) == [[b"one", b"two"]]


def test_aborted_records_are_never_read(client, topic, transactional_id):
    name = topic()
    producer = started(client, transactional_id)
    transact(producer, name, [b"kept"])
    producer.begin()
    producer.send(name, b"dropped")
    producer.flush()
    producer.abort()
    transact(producer, name, [b"kept, too"])
    eventually(lambda: client.end(name, COMMITTED) == 6, "three markers")
    assert client.read(name, COMMITTED) == [[b"kept", b"kept, too"]]
    assert client.read(name, UNCOMMITTED) == [[b"kept", b"dropped", b"kept, too"]]


def test_a_transaction_spans_topics_and_partitions(client, topic, transactional_id):
    names = [topic(3), topic(2)]
    places = [(name, partition) for name, count in zip(names, (3, 2), strict=True) for partition in range(count)]
    producer = started(client, transactional_id)
    kept = []

    def ends():
        return {client.end(name, COMMITTED, partition) for name, partition in places}

    for number, commit in enumerate([True, False, True, False, True]):
        value = b"%d" % number
        producer.begin()
        for name, partition in places:
            producer.send(name, value, partition)
        producer.flush()
        assert ends() == {2 * number}
        producer.commit() if commit else producer.abort()
        kept += [value] * commit
        eventually(lambda expected=2 * number + 2: ends() == {expected}, "a marker in every partition")
    for name, count in zip(names, (3, 2), strict=True):
        assert client.read(name, COMMITTED, count) == [kept] * count
        assert client.read(name, UNCOMMITTED, count) == [[b"0", b"1", b"2", b"3", b"4"]] * count


def test_an_open_transaction_holds_back_later_records(client, topic, transactional_id):
    """Later records of other transactions, and those without a transaction, wait for its end."""
    name = topic()
    first = started(client, transactional_id)
    second = started(client, unique("second"))
    plain = client.plain()
    first.begin()
    first.send(name, b"first")
    first.flush()
    transact(second, name, [b"second"])
    plain.send(name, b"plain")
    plain.flush()
    eventually(lambda: client.end(name, UNCOMMITTED) == 4, "the marker of the second")
    assert client.end(name, COMMITTED) == 0
    assert client.read(name, COMMITTED) == [[]]
    assert client.read(name, UNCOMMITTED) == [[b"first", b"second", b"plain"]]
    second.begin()
    second.send(name, b"second, again")
    second.flush()
    first.abort()
    eventually(lambda: client.end(name, COMMITTED) == 4, "the first open transaction is that of the second producer")
    assert client.read(name, COMMITTED) == [[b"second", b"plain"]]
    second.commit()
    eventually(lambda: client.end(name, COMMITTED) == 7, "all markers")
    assert client.read(name, COMMITTED) == [[b"second", b"plain", b"second, again"]]


def test_an_empty_transaction_writes_nothing(client, topic, transactional_id):
    name = topic()
    producer = started(client, transactional_id)
    for commit in (True, False, True):
        transact(producer, name, [], commit)
    assert client.end(name, UNCOMMITTED) == 0
    transact(producer, name, [b"not empty"])
    eventually(lambda: client.end(name, COMMITTED) == 2, "the marker")


def test_a_second_instance_fences_the_first(client, topic, transactional_id):
    """The open transaction of the first instance is aborted, and all its calls fail from then on."""
    name = topic()
    first = started(client, transactional_id)
    first.begin()
    first.send(name, b"of the first")
    first.flush()
    second = started(client, transactional_id)
    assert client.end(name, COMMITTED) == 2, "aborted when the second instance has been started"
    second.begin()
    second.send(name, b"of the second")
    second.flush()
    second.commit()
    eventually(lambda: client.end(name, COMMITTED) == 4, "the marker")
    # A client with KIP-360 may request a new epoch first, and fails then.
    with suppress(TransactionError):
        first.send(name, b"of the first, late")
    error_of(first.commit)
    error_of(first.begin)
    assert client.end(name, COMMITTED) == 4
    assert client.read(name, COMMITTED) == [[b"of the second"]]
    assert client.read(name, UNCOMMITTED) == [[b"of the first", b"of the second"]]


def test_a_fenced_instance_cannot_commit(client, topic, transactional_id):
    """It sends no more records, so only the epoch of its EndTxn differs from that of the second instance."""
    name = topic()
    first = started(client, transactional_id)
    first.begin()
    first.send(name, b"of the first")
    first.flush()
    second = started(client, transactional_id)
    second.begin()
    second.send(name, b"of the second")
    second.flush()
    assert error_of(first.commit).kind == FENCED
    assert client.end(name, COMMITTED) == 2
    second.abort()
    eventually(lambda: client.end(name, COMMITTED) == 4, "the marker")
    assert client.read(name, COMMITTED) == [[]]


def test_an_expired_transaction_is_aborted(client, topic, transactional_id):
    # On a slow machine the first timeout may expire before the record is written.
    for timeout_ms in (1000, 4000, 16_000):
        name = topic()
        producer = started(client, transactional_id, timeout_ms=timeout_ms)
        producer.begin()
        try:
            producer.send(name, b"too slow")
            producer.flush()
            break
        except TransactionError:
            continue
    eventually(lambda: client.end(name, COMMITTED) == 2, "the abort")
    assert error_of(producer.commit).kind in (FENCED, ABORTABLE)
    assert client.read(name, COMMITTED) == [[]]
    later = started(client, transactional_id)
    transact(later, name, [b"in time"])
    eventually(lambda: client.end(name, COMMITTED) == 4, "the marker")
    assert client.read(name, COMMITTED) == [[b"in time"]]


def test_a_timeout_above_the_maximum_is_rejected(client, transactional_id):
    producer = client.transactional_producer(transactional_id, timeout_ms=15 * 60_000 + 1)
    assert "timeout" in str(error_of(producer.init)).lower()


def test_a_large_transaction_crosses_segments(client, topic, transactional_id):
    """Each transaction has 1.3 MB, and segments have 1 MiB; a plain producer writes records in between."""
    name = topic(1, {"segment.bytes": str(1 << 20)})
    producer = started(client, transactional_id)
    plain = client.plain()
    kept = []
    for number, commit in enumerate([True, False, True]):
        producer.begin()
        for part in range(16):
            values = [b"%d %d %d " % (number, part, item) + b"." * 20_000 for item in range(4)]
            for value in values:
                producer.send(name, value)
            producer.flush()
            beside = b"plain %d %d" % (number, part)
            plain.send(name, beside)
            plain.flush()
            kept += [*(values if commit else []), beside]
        producer.commit() if commit else producer.abort()
    eventually(lambda: client.end(name, COMMITTED) == client.end(name, UNCOMMITTED), "the markers")
    assert client.read(name, COMMITTED) == [kept]


def test_offsets_are_committed_with_the_transaction(client, topic, transactional_id, group):
    source, target = topic(), topic()
    producer = started(client, transactional_id)
    transact(producer, source, [b"%d" % number for number in range(10)])
    member = client.member(group, source)
    assert member.read(10) == [b"%d" % number for number in range(10)]
    for commit, offset, expected in ((False, 4, -1), (True, 5, 5), (False, 9, 5), (True, 10, 10)):
        producer.begin()
        producer.send(target, b"%d" % offset)
        producer.send_offsets(member.metadata(), source, {0: offset})
        producer.flush()
        producer.commit() if commit else producer.abort()
        # EndTxn is acknowledged before the markers are written; clients with KIP-447 wait for pending offsets.
        eventually(lambda expected=expected: client.committed(group, source) == expected, "the marker")
    assert client.read(target, COMMITTED) == [[b"5", b"10"]]


def test_a_fetch_of_offsets_waits_for_pending_ones(client, topic, transactional_id, group):
    source = topic()
    producer = started(client, transactional_id)
    transact(producer, source, [b"one", b"two"])
    member = client.member(group, source)
    member.read(2)
    producer.begin()
    producer.send_offsets(member.metadata(), source, {0: 2})
    if client.knows_kip_447:
        with pytest.raises(TimeoutError):
            client.committed(group, source, timeout_s=0.7)
    else:
        assert client.committed(group, source) == -1
    producer.commit()
    eventually(lambda: client.committed(group, source) == 2, "the marker")


def test_offsets_of_a_former_member_are_rejected(client, topic, transactional_id, group):
    source, target = topic(), topic()
    producer = started(client, transactional_id)
    transact(producer, source, [b"one", b"two"])
    member = client.member(group, source)
    member.read(2)
    stale = member.metadata()
    member.leave()
    producer.begin()
    producer.send(target, b"of a member that has left")
    producer.flush()
    if client.knows_kip_447:
        assert error_of(producer.send_offsets, stale, source, {0: 2}).kind == ABORTABLE
    else:
        producer.send_offsets(stale, source, {0: 2})
    producer.abort()
    eventually(lambda: client.committed(group, source) == -1, "the marker")
    transact(producer, target, [b"later"])
    eventually(lambda: client.end(target, COMMITTED) == 4, "the marker")
    assert client.read(target, COMMITTED) == [[b"later"]]
