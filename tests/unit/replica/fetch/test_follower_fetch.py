"""Fetch requests of followers: positions, limits, sessions, and when they wait."""

import asyncio

import pytest

from kbroker.replica.fetch import fetch_manager
from kbroker.replica.fetch.fetch_session import DelayedFetch
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchResponse
from protocol.messages import k01_fetch
from protocol.messages.k01_fetch import ReplicaState
from tests.unit.support.client import Client, batch
from tests.unit.support.replicated_partition import LONG_MS, ReplicatedPartition, offsets, only
from tests.unit.support.simulated_broker import Machine, broker_test


async def replicated(m: Machine, records: int = 0, **configs: object) -> tuple[ReplicatedPartition, Client]:
    """Return a partition of which the ISR is [1, 2, 3], and a producer."""
    client = await m.client()
    await client.create_topic("t", **configs)
    for _ in range(records):
        await client.produce("t", batch(b"v"))
    t = ReplicatedPartition(m)
    t.lead([1, 2, 3])
    return t, client


@pytest.mark.parametrize("version", [4, 11, 14, 15, 17])
def test_a_client_that_poses_as_a_follower_reads_nothing_and_commits_nothing(version: int) -> None:
    """Before version 15 the replica id has a field of its own, and no broker epoch proves it."""

    @broker_test
    async def story(m: Machine) -> None:
        t, client = await replicated(m)
        produced = client.send_produce("t", batch(b"uncommitted"))
        await asyncio.sleep(1)
        for replica in (2, 3):
            stranger = await m.client()
            stranger.ids = client.ids
            request = stranger.fetch_request({("t", 0): 1 if replica == 3 else 0})
            if version < 15:
                request.replica_id = replica
            else:
                request.replica_state = ReplicaState(replica_id=replica, replica_epoch=100 + replica)
            response = stranger.send(request, version, k01_fetch.FetchResponse)
            with pytest.raises(ConnectionResetError):
                await response
        assert (t.high_watermark, t.partition.log.log_end_offset) == (0, 1)
        assert [t.partition.state.followers[replica].log_end_offset for replica in (2, 3)] == [-1, -1]
        assert not produced.done()
        # A replica id below -1 is that of a debugging consumer, which reads what is committed.
        if version < 15:
            request = client.fetch_request({("t", 0): 0})
            request.replica_id = -2
            (topic,) = (await client.send(request, version, k01_fetch.FetchResponse)).responses
            assert (topic.partitions[0].high_watermark, topic.partitions[0].records) == (0, b"")

    story()


@broker_test
async def test_followers_read_to_the_log_end_and_their_next_fetches_commit(m: Machine) -> None:
    t, client = await replicated(m)
    produced = client.send_produce("t", batch(b"a"))
    await asyncio.sleep(1)
    for replica in (2, 3):
        result = t.claim(replica, 0)
        assert offsets(result) == [0]
        assert result is not None
        assert result.high_watermark == 0
    assert t.claim(2, 1) is None
    assert not produced.done()
    # The last follower's response has the new high watermark already.
    result = t.claim(3, 1)
    assert result is not None
    assert (result.high_watermark, bytes(result.records)) == (1, b"")  # type: ignore[arg-type]
    assert (await produced).error_code == ErrorCode.NONE


@broker_test
async def test_the_appends_of_one_turn_of_the_loop_share_a_response(m: Machine) -> None:
    t, _ = await replicated(m)
    waiting = [t.fetch(replica, 0, wait_ms=LONG_MS) for replica in (2, 3)]
    for _ in range(5):
        t.partition.append_as_leader(memoryview(bytearray(batch(b"v"))), 1, 9, m.now_ms)
    assert not any(isinstance(response, FetchResponse) or response.is_done for response in waiting)
    await asyncio.sleep(0)
    for response in waiting:
        assert isinstance(response, DelayedFetch)
        assert response.is_done
        assert offsets(only(await response)) == [0, 1, 2, 3, 4]


@broker_test
async def test_a_high_watermark_alone_sends_no_response_but_is_in_the_next_one(m: Machine) -> None:
    t, client = await replicated(m)
    await client.produce("t", batch(b"a"), acks=1)
    t.claim(2, 0)
    t.claim(3, 0)
    waiting = t.fetch(2, 1, wait_ms=5_000)
    t.claim(3, 1)
    assert t.high_watermark == 1
    assert isinstance(waiting, DelayedFetch)
    await asyncio.sleep(4)
    assert not waiting.is_done
    result = only(await waiting)
    assert result is not None
    assert result.high_watermark == 1


@broker_test
async def test_a_newer_fetch_completes_the_waiting_one(m: Machine) -> None:
    """Otherwise the claims of a follower that has synced its log would wait for the long poll."""
    t, _ = await replicated(m, 1)
    t.claim(2, 0)
    waiting = t.fetch(2, 1, wait_ms=LONG_MS)
    assert isinstance(waiting, DelayedFetch)
    assert not waiting.is_done
    newer = t.fetch(2, 1, wait_ms=LONG_MS)
    assert waiting.is_done
    assert only(await waiting) is None
    assert isinstance(newer, DelayedFetch)
    assert not newer.is_done
    newer.abandon()


@broker_test
async def test_a_claim_is_recorded_before_any_records_are_read(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the response has no room for the records of the partition."""
    t, client = await replicated(m, 3)
    await client.produce("t", batch(b"a"), acks=1)
    t.claim(2, 3)
    monkeypatch.setattr(fetch_manager, "read_partitions", None)
    with pytest.raises(TypeError):
        t.claim(3, 3)
    assert t.partition.state.followers[3].log_end_offset == 3


@broker_test
async def test_a_claim_needs_the_current_leader_epoch(m: Machine) -> None:
    t, client = await replicated(m, 3)
    await client.produce("t", batch(b"a"), acks=1)
    epoch = t.partition.leader_epoch
    for claimed, code in (
        (epoch - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.FENCED_LEADER_EPOCH),
    ):
        for replica in (2, 3):
            result = t.claim(replica, 4, leader_epoch=claimed)
            assert result is not None
            assert result.error_code == code
    assert t.high_watermark == 3


@broker_test
async def test_only_assigned_replicas_fetch(m: Machine) -> None:
    t, _ = await replicated(m, 3)
    result = t.claim(7, 3)
    assert result is not None
    assert result.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@broker_test
async def test_a_follower_that_diverges_learns_where_and_claims_nothing(m: Machine) -> None:
    t, client = await replicated(m, 3)
    t.lead([1, 2, 3], 7)
    await client.produce("t", batch(b"a"), acks=1)
    # It has two records of epoch 5, of which this leader knows nothing.
    result = t.claim(2, 5, last_epoch=5)
    assert result is not None
    assert result.diverging == (0, 3)
    assert t.partition.state.followers[2].log_end_offset == -1
    assert offsets(t.claim(2, 3, last_epoch=0)) == [3]
    assert t.partition.state.followers[2].log_end_offset == 3


@broker_test
async def test_a_claim_above_the_log_end_is_out_of_range(m: Machine) -> None:
    t, _ = await replicated(m, 3)
    for offset in (4, -1):
        result = t.claim(2, offset)
        assert result is not None
        assert result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert t.high_watermark == 3
    assert t.partition.state.followers[2].log_end_offset == -1


@broker_test
async def test_slow_consumers_do_not_make_the_responses_of_followers_smaller(m: Machine) -> None:
    t, _ = await replicated(m, 20)
    t.services.fetching.unsent_bytes = 1 << 30
    assert offsets(t.claim(2, 0)) == list(range(20))
    assert t.services.fetching.replication_bytes_out > 0
    t.services.fetching.unsent_bytes = 0


@broker_test(max_incremental_fetch_session_cache_slots=1)
async def test_consumers_do_not_evict_the_sessions_of_followers(m: Machine) -> None:
    t, client = await replicated(m)
    t.claim(2, 0)
    await client.fetch({("t", 0): 0}, session=(0, 0))
    await client.fetch({("t", 0): 0}, session=(0, 0))
    assert t.claim(2, 0) is None
    # A new connection of the same follower replaces its session.
    t._sessions.clear()
    t.claim(2, 0)
    assert len(t.services.fetching.follower_sessions) == 1
    assert len(t.partition.replica_fetchers) == 1


@broker_test
async def test_losing_the_leadership_completes_the_fetches_of_followers(m: Machine) -> None:
    t, _ = await replicated(m)
    waiting = t.fetch(2, 0, wait_ms=LONG_MS)
    assert isinstance(waiting, DelayedFetch)
    t.follow(3)
    result = only(await waiting)
    assert result is not None
    assert result.error_code == ErrorCode.FENCED_LEADER_EPOCH
