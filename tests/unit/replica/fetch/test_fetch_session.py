"""Fetch sessions (KIP-227): epochs, the cache, and the partitions that are ready."""

from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.replica.fetch.fetch_session import MAX_EPOCH, FetchSession, FetchSessionCache, partition_bytes
from protocol.errors import ErrorCode


def requested(index: int, offset: int = 0) -> tuple[int, int, int, int, int]:
    return (index, -1, offset, -1, 1000, -1)


def cache(slots: int = 2) -> FetchSessionCache:
    return FetchSessionCache(slots, Random(7), eviction_ms=1000)


def test_an_incremental_request_changes_only_its_partitions() -> None:
    session, _ = cache().create(uses_topic_ids=False, now_ms=0)
    session.update([("a", [requested(0), requested(1)]), ("b", [requested(0)])], [])
    assert list(session.partitions) == [("a", 0), ("a", 1), ("b", 0)]
    session.ready.clear()
    session.is_incremental = True
    session.update([("a", [requested(1, offset=50)])], [("b", [0]), ("b", [9])])
    assert [(p.key, p.index, p.offset) for p in session.ready] == [("a", 1, 50)]
    assert set(session.partitions) == {("a", 0), ("a", 1)}


def test_a_full_request_forgets_no_partition() -> None:
    session, _ = cache().create(uses_topic_ids=False, now_ms=0)
    session.update([("a", [requested(0)])], [("a", [0])])
    assert [(p.key, p.index) for p in session.ready] == [("a", 0)]
    assert list(session.partitions) == [("a", 0)]


def test_a_partition_whose_records_were_sent_moves_to_the_end() -> None:
    session, _ = cache().create(uses_topic_ids=False, now_ms=0)
    session.update([("a", [requested(0), requested(1)])], [])
    first, second = session.partitions.values()
    session.move_to_end(first)
    assert list(session.ready) == [second, first]


@pytest.mark.parametrize(
    ("session_id", "epoch", "uses_topic_ids", "code"),
    [
        ("mine", 1, False, None),
        ("mine", 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("other", 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("mine", 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_resuming(session_id: str, epoch: int, uses_topic_ids: bool, code: ErrorCode | None) -> None:
    sessions = cache()
    session, _ = sessions.create(uses_topic_ids=False, now_ms=0)
    number = session.id if session_id == "mine" else session.id ^ 1
    if code is None:
        assert sessions.resume(number, epoch, uses_topic_ids, 5) is session
        assert session.epoch == 2
        assert session.is_incremental
        return
    with pytest.raises(KafkaError) as refused:
        sessions.resume(number, epoch, uses_topic_ids, 5)
    assert refused.value.code is code


def test_epochs_wrap_to_one() -> None:
    sessions = cache()
    session, _ = sessions.create(uses_topic_ids=False, now_ms=0)
    session.epoch = MAX_EPOCH
    sessions.resume(session.id, MAX_EPOCH, False, 0)
    assert session.epoch == 1


def test_a_full_cache_evicts_the_least_recently_used_session_or_none() -> None:
    sessions = cache(slots=2)
    first, _ = sessions.create(False, now_ms=0)
    second, _ = sessions.create(False, now_ms=10)
    refused, evicted = sessions.create(False, now_ms=500)
    assert (refused.id, evicted) == (0, None)
    sessions.resume(first.id, 1, False, now_ms=900)
    third, evicted = sessions.create(False, now_ms=1500)
    assert evicted is second
    assert third.id != 0
    assert len(sessions) == 2


# The bound in bytes.

ROOM = 10 * partition_bytes("t")


def bounded() -> FetchSessionCache:
    """Return a cache for ten partitions in all."""
    return FetchSessionCache(5, Random(7), eviction_ms=1000, max_bytes=ROOM)


def session_of(sessions: FetchSessionCache, count: int, now_ms: int = 0) -> tuple[FetchSession, list[FetchSession]]:
    """Create a session of `count` partitions; return it and the sessions that were evicted for it."""
    session, _ = sessions.create(False, now_ms)
    session.update([("t", [requested(index) for index in range(count)])], [])
    return session, sessions.count_bytes(session, now_ms)


def test_no_session_is_created_beyond_the_bound_in_bytes() -> None:
    sessions = bounded()
    first, _ = session_of(sessions, 6)
    second, _ = session_of(sessions, 4)
    assert first.id
    assert second.id
    assert sessions.size_bytes == ROOM
    third, evicted = session_of(sessions, 1, now_ms=500)
    assert (third.id, evicted, len(sessions), sessions.size_bytes) == (0, [], 2, ROOM)


def test_idle_sessions_are_evicted_if_that_makes_enough_room() -> None:
    sessions = bounded()
    first, _ = session_of(sessions, 3)
    second, _ = session_of(sessions, 3)
    third, _ = session_of(sessions, 4, now_ms=900)
    too_large, evicted = session_of(sessions, 7, now_ms=1000)
    assert (too_large.id, evicted, len(sessions)) == (0, [], 3), "nothing is evicted in vain"
    fitting, evicted = session_of(sessions, 5, now_ms=1000)
    assert fitting.id
    assert evicted == [first, second]
    assert sessions.all() == [third, fitting]
    assert sessions.size_bytes == 9 * partition_bytes("t")


def test_a_session_that_grows_too_large_ends() -> None:
    sessions = bounded()
    session, _ = session_of(sessions, 9)
    number = session.id
    sessions.resume(number, 1, False, 10)
    session.update([("t", [requested(9)])], [])
    assert sessions.count_bytes(session, 10) == []
    assert session.id == number
    sessions.resume(number, 2, False, 20)
    session.update([("t", [requested(10)])], [])
    assert sessions.count_bytes(session, 20) == []
    assert (session.id, len(sessions), sessions.size_bytes) == (0, 0, 0)
    with pytest.raises(KafkaError) as refused:
        sessions.resume(number, 3, False, 30)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_forgotten_partitions_make_room() -> None:
    sessions = bounded()
    session, _ = session_of(sessions, 10)
    sessions.resume(session.id, 1, False, 10)
    session.update([], [("t", list(range(8)))])
    sessions.count_bytes(session, 10)
    other, _ = session_of(sessions, 8, now_ms=10)
    assert other.id
    for cached in (session, other):
        sessions.remove(cached.id)
    assert sessions.size_bytes == 0


def test_the_bytes_of_a_partition_include_its_topic_name() -> None:
    assert partition_bytes("n" * 249) - partition_bytes("n") == 248
    assert partition_bytes("\U0001f600" * 249) - partition_bytes("") == 4 * 249
    assert partition_bytes(bytes(16)) > partition_bytes("")
