"""The table of idempotency keys: expiry, bounds, transactions and snapshots."""

import tracemalloc

import pytest

from kbroker.config.topic_config import validate_topic_configs
from kbroker.config.values import ConfigError
from kbroker.queues.dedup.key_state import StateSnapshot, decode_state_snapshot, encode_state_snapshot, matches_log
from kbroker.queues.dedup.key_table import NO_TRANSACTION, KeyTable, key_digest
from kbroker.queues.record_headers import InvalidHeaderError
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_keys_expire_after_the_window() -> None:
    table = KeyTable(1000, 100)
    table.add(digest(1), 5, 10_000, NO_TRANSACTION)
    assert table.find(digest(1), NO_TRANSACTION, 10_999) == (5, 10_000)
    assert table.find(digest(1), NO_TRANSACTION, 11_000) is None
    table.forget_expired(11_000)
    assert len(table) == 0


def test_the_oldest_keys_are_forgotten_when_there_are_too_many() -> None:
    table = KeyTable(1_000_000, 1000)
    for number in range(5000):
        table.add(digest(number), number, number, NO_TRANSACTION)
        table.forget_expired(number)
        assert len(table) <= 1000
    assert table.find(digest(4999), NO_TRANSACTION, 5000) is not None
    assert table.find(digest(0), NO_TRANSACTION, 5000) is None
    assert table.evicted == 5000 - len(table)
    assert len(table) > 1000 - 1000 // 64 - 2


def test_keys_of_open_transactions_are_bounded_too() -> None:
    table = KeyTable(1_000_000, 100)
    for number in range(1000):
        table.add(digest(number), number, number, number % 3)
        table.forget_expired(number)
        assert len(table) <= 100


def test_a_committed_key_replaces_an_expired_one_that_is_still_there() -> None:
    table = KeyTable(6400, 100)
    for number, time_ms in ((1, 0), (2, 1)):
        table.add(digest(number), number, time_ms, NO_TRANSACTION)
        table.forget_expired(time_ms)
    # The next expiry is later, since each one scans the removed places.
    table.forget_expired(6400)
    assert table.find(digest(2), NO_TRANSACTION, 6450) is None
    table.add(digest(2), 50, 6450, 7)
    table.end_transaction(7, True)
    assert table.find(digest(2), NO_TRANSACTION, 6490) == (50, 6450)


def test_keys_of_an_open_transaction_count_for_itself_only() -> None:
    table = KeyTable(1000, 100)
    table.add(digest(1), 0, 0, 7)
    assert table.find(digest(1), 7, 1) == (0, 0)
    assert table.find(digest(1), 8, 1) is None
    assert table.find(digest(1), NO_TRANSACTION, 1) is None
    table.end_transaction(7, True)
    assert table.find(digest(1), NO_TRANSACTION, 1) == (0, 0)
    table.add(digest(2), 1, 0, 7)
    table.end_transaction(7, False)
    assert table.find(digest(2), 7, 1) is None
    assert len(table) == 1


def test_a_snapshot_has_all_keys() -> None:
    table = KeyTable(1000, 100)
    table.add(digest(1), 1 << 40, 5, NO_TRANSACTION)
    table.add(digest(2), 1, 6, 7)
    parts = table.to_snapshot()
    table.add(digest(3), 9, 9, NO_TRANSACTION)
    table.end_transaction(7, True)
    data = b"".join(parts)
    loaded = KeyTable(1000, 100)
    loaded.load_snapshot(data)
    assert loaded.find(digest(1), NO_TRANSACTION, 10) == (1 << 40, 5)
    assert loaded.find(digest(2), 7, 10) == (1, 6)
    assert loaded.find(digest(2), 8, 10) is None
    assert len(loaded) == 2
    with pytest.raises(ValueError, match="buffer"):
        KeyTable(1000, 100).load_snapshot(data[:-1])


def test_a_step_does_not_take_time_for_all_keys() -> None:
    table = KeyTable(1000, 100_000)
    for number in range(20_000):
        table.add(digest(number), number, 0, NO_TRANSACTION)
    tracemalloc.start()
    parts = table.to_snapshot()
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    # All expire at the same time. They are removed bit by bit.
    table.forget_expired(1000)
    assert 19_000 < len(table) < 20_000
    assert table.find(digest(19_999), NO_TRANSACTION, 1000) is None
    for number in range(20_000, 30_000):
        table.add(digest(number), number, 1000, NO_TRANSACTION)
    assert len(table) == 10_000
    loaded = KeyTable(1000, 100_000)
    loaded.load_snapshot(b"".join(parts))
    assert len(loaded) == 20_000
    # The limit is lowered.
    table.max_keys = 100
    table.forget_expired(1000)
    assert 9000 < len(table) < 10_000
    for number in range(30_000, 40_000):
        table.add(digest(number), number, 1000, NO_TRANSACTION)
    assert len(table) == 100
    assert table.find(digest(39_999), NO_TRANSACTION, 1000) is not None


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_of_a_large_transaction_counts_at_once_and_is_applied_bit_by_bit(committed: bool) -> None:
    table = KeyTable(1000, 100_000)
    for number in range(10_000):
        table.add(digest(number), number, 0, 7)
    table.add(digest(10_000), 10_000, 0, 8)
    table.end_transaction(7, committed)
    parts = table.to_snapshot()
    # The producer's next transaction, and another one, which does not wait for the large one.
    table.add(digest(10_001), 10_001, 0, 7)
    table.end_transaction(8, True)
    assert table.find(digest(10_000), NO_TRANSACTION, 0) == (10_000, 0)
    loaded = KeyTable(1000, 100_000)
    loaded.load_snapshot(b"".join(parts))
    for each in (table, loaded):
        for number in (0, 5000, 9999):
            for producer_id in (NO_TRANSACTION, 7):
                assert each.find(digest(number), producer_id, 0) == ((number, 0) if committed else None)
    for _ in range(50):
        table.forget_expired(0)
        assert table.find(digest(5000), NO_TRANSACTION, 0) == ((5000, 0) if committed else None)
    assert len(table) == (10_002 if committed else 2)


def test_keys_are_bounded() -> None:
    assert key_digest([(b"other", b"x")]) is None
    assert key_digest([(b"IDEMPOTENCY_KEY", b"x" * 1024)]) is not None
    for headers in ([(b"IDEMPOTENCY_KEY", None)], [(b"IDEMPOTENCY_KEY", b"a"), (b"IDEMPOTENCY_KEY", b"a")]):
        with pytest.raises(InvalidHeaderError):
            key_digest(headers)


def test_a_snapshot_of_another_history_is_noticed() -> None:
    snapshot = StateSnapshot(bytes(16), 10, 3, b"state")
    assert decode_state_snapshot(encode_state_snapshot(*snapshot[:3], [b"st", b"ate"])) == snapshot
    same = LeaderEpochCache([(1, 0), (3, 5)])
    assert matches_log(snapshot, bytes(16), same, 0, 10)
    assert matches_log(snapshot, bytes(16), LeaderEpochCache([(1, 0), (3, 5), (4, 10)]), 0, 20)
    # Truncated, and perhaps written again by another leader.
    assert not matches_log(snapshot, bytes(16), same, 0, 9)
    assert not matches_log(snapshot, bytes(16), LeaderEpochCache([(1, 0), (3, 5), (4, 8)]), 0, 20)
    assert not matches_log(snapshot, bytes(16), same, 10, 10)
    assert not matches_log(snapshot, b"x" * 16, same, 0, 10)
    data = encode_state_snapshot(*snapshot[:3], [b"state"])
    for damaged in (b"", data[:-1], b"x" + data[1:]):
        with pytest.raises(ValueError, match="snapshot"):
            decode_state_snapshot(damaged)


def test_a_window_on_a_compacted_topic_is_refused() -> None:
    validate_topic_configs({"kbroker.dedup.window.ms": "1000"})
    for policy in ("compact", "compact,delete"):
        with pytest.raises(ConfigError, match=r"kbroker.dedup.window.ms cannot be combined with cleanup.policy"):
            validate_topic_configs({"kbroker.dedup.window.ms": "1000", "cleanup.policy": policy})
