"""Followers join and leave the in-sync replicas; the controller decides, sometimes without the leader learning it."""

import asyncio
from unittest.mock import patch

from kbroker.common import KafkaError
from kbroker.replica.isr_manager import IsrManager
from protocol.errors import ErrorCode
from tests.unit.support.client import Client, batch
from tests.unit.support.replicated_partition import LAG_MS, ReplicatedPartition
from tests.unit.support.simulated_broker import Machine, broker_test

LAG = LAG_MS / 1000


async def replicated(
    m: Machine, isr: list[int], records: int = 0, **configs: object
) -> tuple[ReplicatedPartition, Client]:
    """Return a partition with `records` committed records, whose leader has just been elected, and a producer."""
    client = await m.client()
    await client.create_topic("t", **configs)
    for _ in range(records):
        await client.produce("t", batch(b"v"))
    replicated = ReplicatedPartition(m)
    replicated.lead(isr)
    return replicated, client


@broker_test
async def test_a_caught_up_follower_joins(m: Machine) -> None:
    t, _ = await replicated(m, [1, 2], records=5)
    t.claim(2, 5)
    t.claim(3, 4)
    await asyncio.sleep(1)
    assert t.controller.requests == []
    t.claim(3, 5)
    await asyncio.sleep(1)
    assert t.controller.proposed == [[(1, 101), (2, 102), (3, 103)]]
    (request,) = t.controller.requests
    assert (request.broker_id, request.broker_epoch) == (1, 101)
    assert request.topics[0].partitions[0].leader_epoch == t.partition.leader_epoch
    assert t.isr == [1, 2, 3]
    assert t.services.replicas.isr_manager.expands == 1


@broker_test
async def test_in_sync_replicas_are_listed_in_the_order_of_their_ids_as_in_kafka(m: Machine) -> None:
    t, _ = await replicated(m, [1, 3], records=1)
    t.claim(3, 1)
    t.claim(2, 1)
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]


@broker_test
async def test_a_follower_that_joins_holds_the_high_watermark_back_from_the_proposal_on(m: Machine) -> None:
    t, client = await replicated(m, [1, 2], records=5)
    t.controller.accepts = False
    t.claim(2, 5)
    t.claim(3, 5)
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(2, 6)
    assert t.high_watermark == 5
    t.claim(3, 6)
    assert t.high_watermark == 6
    # It is in the ISR, as far as the leader knows, when the controller has said so.
    assert t.isr == [1, 2]
    await asyncio.sleep(1)
    t.controller.answer()
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]


@broker_test
async def test_with_an_unknown_outcome_the_leader_assumes_the_larger_isr_and_repeats(m: Machine) -> None:
    t, client = await replicated(m, [1, 2], records=5)
    t.controller.accepts = False
    t.claim(2, 5)
    t.claim(3, 5)
    for attempt in range(3):
        await asyncio.sleep(1)
        assert len(t.controller.requests) == attempt + 1
        t.controller.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(2, 6)
    assert t.high_watermark == 5
    await asyncio.sleep(1)
    # The first request had an effect: the controller refuses the same one again, and the image has the new ISR.
    t.controller.answer(ErrorCode.INVALID_UPDATE_VERSION)
    await asyncio.sleep(10)
    assert len(t.controller.requests) == 4
    assert t.high_watermark == 5
    t.lead([1, 2, 3], t.partition.leader_epoch)
    assert t.isr == [1, 2, 3]
    t.claim(3, 6)
    assert t.high_watermark == 6


@broker_test
async def test_a_refused_follower_holds_nothing_back(m: Machine) -> None:
    t, client = await replicated(m, [1, 2], records=5)
    t.controller.accepts = False
    t.claim(2, 5)
    t.claim(3, 5)
    await asyncio.sleep(1)
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(2, 6)
    assert t.high_watermark == 5
    t.controller.answer(ErrorCode.INELIGIBLE_REPLICA)
    await asyncio.sleep(1)
    assert t.high_watermark == 6
    assert t.isr == [1, 2]
    assert t.services.replicas.isr_manager.failed_updates == 1


@broker_test
async def test_a_change_that_ends_the_leadership_counts_until_the_image_has_the_next_leader(m: Machine) -> None:
    """It has completed a reassignment to other brokers: the controller has made it, and one of its ISR leads."""
    t, client = await replicated(m, [1, 2], records=5)
    t.controller.accepts = False
    t.claim(2, 5)
    t.claim(3, 5)
    await asyncio.sleep(1)
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(2, 6)
    t.controller.answer(ErrorCode.NEW_LEADER_ELECTED)
    await asyncio.sleep(1)
    assert t.high_watermark == 5
    t.claim(3, 6)
    assert t.high_watermark == 6
    assert t.isr == [1, 2]


@broker_test
async def test_a_follower_that_missed_a_deletion_joins_after_it_has_deleted_the_records(m: Machine) -> None:
    t, client = await replicated(m, [1, 2], records=5)
    t.fence(3)
    t.claim(2, 5)
    deleting = asyncio.ensure_future(client.delete_records("t", 4))
    await asyncio.sleep(1)
    t.claim(2, 5, log_start=4)
    assert await deleting == (0, 4)
    t.register(3)
    result = t.claim(3, 5, log_start=0)
    await asyncio.sleep(1)
    assert t.isr == [1, 2]
    assert result is not None
    assert result.log_start_offset == 4
    t.claim(3, 5, log_start=4)
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]


@broker_test
async def test_a_follower_that_lags_leaves_and_its_absence_commits(m: Machine) -> None:
    """KAFKA-13091: the smaller ISR has everything already."""
    t, client = await replicated(m, [1, 2, 3], records=5)
    t.claim(2, 5)
    t.claim(3, 5)
    produced = client.send_produce("t", batch(b"v"), timeout_ms=200_000)
    await asyncio.sleep(LAG)
    t.claim(2, 6)
    assert t.controller.requests == []
    await asyncio.sleep(LAG)
    assert t.controller.proposed == [[(1, 101), (2, 102)]]
    assert t.isr == [1, 2]
    assert (await produced).error_code == ErrorCode.NONE
    assert t.services.replicas.isr_manager.shrinks == 1


@broker_test
async def test_a_follower_that_dies_after_it_has_joined_leaves_for_good(m: Machine) -> None:
    """It has everything below the high watermark, which waits for it until it has left."""
    t, client = await replicated(m, [1, 2], records=5)
    t.controller.accepts = False
    t.claim(2, 5)
    t.claim(3, 5)
    await asyncio.sleep(1)
    t.claim(3, 5)
    t.controller.accepts = True
    t.controller.answer()
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(2, 6)
    assert t.high_watermark == 5
    await asyncio.sleep(2 * LAG)
    t.claim(2, 6)
    await asyncio.sleep(2 * LAG)
    assert t.isr == [1, 2]
    assert t.high_watermark == 6
    assert t.services.replicas.isr_manager.expands == 1


@broker_test
async def test_followers_of_an_idle_partition_stay(m: Machine) -> None:
    t, client = await replicated(m, [1, 2, 3], records=5)
    t.claim(2, 5)
    t.claim(3, 5)
    await asyncio.sleep(10 * LAG)
    assert t.controller.requests == []
    # Nor do they lag because their last fetch was long before the next append.
    await client.produce("t", batch(b"v"), acks=1)
    await asyncio.sleep(0.9 * LAG)
    assert t.controller.requests == []


@broker_test
async def test_a_follower_that_never_fetches_leaves(m: Machine) -> None:
    t, _ = await replicated(m, [1, 2, 3], records=5)
    t.claim(2, 5)
    await asyncio.sleep(2 * LAG)
    assert t.isr == [1, 2]


@broker_test
async def test_a_fetch_of_a_former_broker_epoch_counts_for_nothing(m: Machine) -> None:
    """The broker was restarted, perhaps with an empty disk, and a request of its former process arrives late."""
    t, client = await replicated(m, [1, 2], records=5)
    t.register(2, 205)
    t.claim(2, 0, broker_epoch=205)
    await client.produce("t", batch(b"v"), acks=1)
    result = t.claim(2, 6, broker_epoch=102)
    assert result is not None
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert t.high_watermark == 5
    assert t.partition.state.followers[2].log_end_offset == 0


@broker_test
async def test_only_the_registered_broker_epoch_joins(m: Machine) -> None:
    t, _ = await replicated(m, [1, 2], records=5)
    t.register(3, 205)
    t.claim(3, 5, broker_epoch=103)
    await asyncio.sleep(1)
    assert t.controller.requests == []
    t.claim(3, 5, broker_epoch=205)
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]


@broker_test
async def test_a_follower_that_was_fenced_joins_without_another_fetch(m: Machine) -> None:
    """The image with its registration is late. The follower is at the log end, so it has no reason to claim again."""
    t, _ = await replicated(m, [1, 2], records=5)
    t.fence(3)
    t.claim(3, 5)
    await asyncio.sleep(1)
    assert t.controller.requests == []
    t.register(3)
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]


@broker_test
async def test_two_followers_join_one_after_the_other(m: Machine) -> None:
    t, _ = await replicated(m, [1], records=5)
    t.claim(2, 5)
    t.claim(3, 5)
    await asyncio.sleep(1)
    assert t.controller.proposed == [[(1, 101), (2, 102)], [(1, 101), (2, 102), (3, 103)]]
    assert t.isr == [1, 2, 3]


async def almost_in_sync(m: Machine) -> tuple[ReplicatedPartition, Client]:
    """Return a partition with 8 records, 7 of them committed. Follower 3 is not in the ISR, and has claimed 6."""
    t, client = await replicated(m, [1, 2], records=5)
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(3, 3)
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(2, 7)
    # Follower 3 has what the leader had at its previous fetch.
    t.claim(3, 6)
    await client.produce("t", batch(b"v"), acks=1)
    t.claim(2, 8)
    return t, client


@broker_test
async def test_a_busy_partition_waits_for_a_follower_that_is_almost_in_sync(m: Machine) -> None:
    """Otherwise each of its claims would be just below the high watermark."""
    t, _ = await almost_in_sync(m)
    assert t.high_watermark == 7
    t.claim(3, 7)
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]
    assert t.high_watermark == 7
    t.claim(3, 8)
    assert t.high_watermark == 8


@broker_test
async def test_a_fenced_follower_holds_nothing_back(m: Machine) -> None:
    t, _ = await almost_in_sync(m)
    t.fence(3)
    assert t.high_watermark == 8


@broker_test
async def test_below_min_isr_nothing_is_committed_or_accepted(m: Machine) -> None:
    t, client = await replicated(m, [1, 2, 3], records=5, min_insync_replicas=2)
    produced = client.send_produce("t", batch(b"v"), timeout_ms=200_000)
    await asyncio.sleep(1)
    t.lead([1], t.partition.leader_epoch)
    assert t.high_watermark == 5
    other = await m.client()
    assert (await other.produce("t", batch(b"v"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await other.produce("t", batch(b"v"), acks=1)).error_code == ErrorCode.NONE
    # Below min.insync.replicas only a follower with the whole log joins.
    t.claim(2, 6)
    await asyncio.sleep(1)
    assert t.isr == [1]
    t.claim(2, 7)
    await asyncio.sleep(1)
    assert t.isr == [1, 2]
    assert t.high_watermark == 7
    await produced


@broker_test
async def test_an_outcome_after_a_new_epoch_changes_nothing(m: Machine) -> None:
    t, _ = await replicated(m, [1, 2], records=5)
    t.controller.accepts = False
    t.claim(3, 5)
    await asyncio.sleep(1)
    t.lead([1, 2])
    t.controller.answer()
    await asyncio.sleep(1)
    assert t.isr == [1, 2]
    assert t.partition.state.proposal is None


@broker_test
async def test_an_older_image_does_not_replace_the_isr_of_a_response(m: Machine) -> None:
    t, _ = await replicated(m, [1, 2], records=5)
    t.claim(2, 5)
    t.claim(3, 5)
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]
    t.partition_epoch -= 1
    t.lead([1, 2], t.partition.leader_epoch)
    assert t.isr == [1, 2, 3]


@broker_test
async def test_resigning_stops_everything_until_a_new_epoch(m: Machine) -> None:
    t, client = await replicated(m, [1, 2, 3], records=5)
    produced = client.send_produce("t", batch(b"v"))
    await asyncio.sleep(1)
    t.m.broker._assigned.resign()
    assert (await produced).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    result = t.claim(2, 6)
    assert result is not None
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # The image of before: it still names this broker as the leader.
    t.lead([1, 2, 3], t.partition.leader_epoch)
    assert not t.partition.is_leader
    t.lead([1])
    assert t.partition.is_leader
    assert t.high_watermark == 6


@broker_test
async def test_a_replica_has_left_only_with_the_image(m: Machine) -> None:
    """With the former min.insync.replicas the high watermark might advance without an eligible replica (KIP-966)."""
    t, client = await replicated(m, [1, 2], records=5)
    t.claim(2, 5)
    learn, t.controller.on_change = t.controller.on_change, lambda *_: None
    await client.produce("t", batch(b"v"), acks=1)
    await asyncio.sleep(2 * LAG)
    assert t.controller.proposed == [[(1, 101)]]
    assert (t.isr, t.high_watermark) == ([1, 2], 5)
    # The controller knew a change of min.insync.replicas, with which replica 2 is eligible, before it wrote the ISR.
    t.partition.state.set_min_insync_replicas(2)
    learn([1], t.partition_epoch + 1)
    assert (t.isr, t.high_watermark) == ([1], 5)
    assert t.services.replicas.isr_manager.shrinks == 1


@broker_test
async def test_a_defect_in_one_outcome_does_not_end_the_others(m: Machine) -> None:
    t, _ = await replicated(m, [1, 2], records=5)
    t.claim(2, 5)
    with patch.object(IsrManager, "_on_result", side_effect=RuntimeError("a defect")):
        t.claim(3, 5)
        await asyncio.sleep(1)
    t.lead([1, 2])
    t.claim(2, 5)
    t.claim(3, 5)
    await asyncio.sleep(1)
    assert t.isr == [1, 2, 3]
