"""Fetch sessions (KIP-227): epochs, the cache, and the set of partitions with something to say."""

from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.replica.fetch.fetch_session import MAX_EPOCH, FetchSessionCache
from protocol.errors import ErrorCode


def wanted(index: int, offset: int = 0) -> tuple[int, int, int, int, int]:
    return (index, -1, offset, -1, 1000)


def cache(slots: int = 2) -> FetchSessionCache:
    return FetchSessionCache(slots, Random(7), eviction_ms=1000)


def test_an_incremental_request_changes_only_what_it_names() -> None:
    session, _ = cache().create(by_id=False, now_ms=0)
    added, removed = session.apply([("a", [wanted(0), wanted(1)]), ("b", [wanted(0)])], [])
    assert [(p.key, p.index) for p in added] == [("a", 0), ("a", 1), ("b", 0)]
    assert removed == []
    session.ready.clear()
    session.incremental = True
    added, removed = session.apply([("a", [wanted(1, offset=50)])], [("b", [0]), ("b", [9])])
    assert added == []
    assert [(p.key, p.index) for p in removed] == [("b", 0)]
    assert [(p.key, p.index, p.offset) for p in session.ready] == [("a", 1, 50)]
    assert set(session.partitions) == {("a", 0), ("a", 1)}


def test_a_whole_request_forgets_nothing() -> None:
    session, _ = cache().create(by_id=False, now_ms=0)
    added, removed = session.apply([("a", [wanted(0)])], [("a", [0])])
    assert [(p.key, p.index) for p in session.ready] == [("a", 0)]
    assert (len(added), removed) == (1, [])


def test_who_was_served_goes_to_the_back() -> None:
    session, _ = cache().create(by_id=False, now_ms=0)
    (first, second), _ = session.apply([("a", [wanted(0), wanted(1)])], [])
    session.served(first)
    assert list(session.ready) == [second, first]


@pytest.mark.parametrize(
    ("session_id", "epoch", "by_id", "code"),
    [
        ("mine", 1, False, None),
        ("mine", 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ("other", 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("mine", 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_resuming(session_id: str, epoch: int, by_id: bool, code: ErrorCode | None) -> None:
    sessions = cache()
    session, _ = sessions.create(by_id=False, now_ms=0)
    number = session.id if session_id == "mine" else session.id ^ 1
    if code is None:
        assert sessions.resume(number, epoch, by_id, 5) is session
        assert session.epoch == 2
        assert session.incremental
        return
    with pytest.raises(KafkaError) as refused:
        sessions.resume(number, epoch, by_id, 5)
    assert refused.value.code is code


def test_epochs_wrap_to_one() -> None:
    sessions = cache()
    session, _ = sessions.create(by_id=False, now_ms=0)
    session.epoch = MAX_EPOCH
    sessions.resume(session.id, MAX_EPOCH, False, 0)
    assert session.epoch == 1


def test_a_full_cache_gives_up_the_one_that_idles_longest_or_none() -> None:
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
