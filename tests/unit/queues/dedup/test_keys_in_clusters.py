"""Idempotency keys on three brokers: each leader knows the keys of its log, and only these."""

import asyncio
from functools import partial

import pytest

from kbroker.common import NO_LEADER
from kbroker.queues.dedup.dedup_extension import DedupExtension
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, build_batch
from tests.unit.support.client import Client
from tests.unit.support.queue_cluster import End, QueueCluster, kill, power_off, stop
from tests.unit.support.simulated_hosts import simulated

KEY = b"IDEMPOTENCY_KEY"


class KeyCluster(QueueCluster):
    """Its topic has a window of ten minutes."""

    async def create_topic(self, *replicas: int, **configs: str) -> None:
        await self.create(list(replicas), kbroker_dedup_window_ms="600000", **configs)

    def keys(self, node_id: int) -> DedupExtension:
        extension = self.replica(node_id).append_extension
        assert isinstance(extension, DedupExtension)
        return extension

    async def send(
        self, *keys: bytes, value: bytes = b"v", producer_id: int = -1, sequence: int = -1, seen_by: int | None = None
    ) -> int:
        """Produce one batch with these keys. Returns its base offset."""
        epoch = -1 if producer_id < 0 else 0

        def build(now_ms: int) -> bytearray:
            return build_batch(
                [(now_ms, None, value, ((KEY, key),)) for key in keys],
                producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            )  # fmt: skip

        return await self.produce_with_retries(build, seen_by)


@simulated(KeyCluster, range(2))
async def test_a_new_leader_knows_the_keys_of_the_former_one(s: KeyCluster) -> None:
    await s.create_topic(3, 1, 2, min_insync_replicas="2")
    assert await s.send(b"a") == 0
    assert await s.send(b"b") == 1
    s.machines[3].power_off()
    await s.leader(other_than=3)
    assert await s.send(b"b") == 1
    assert await s.send(b"c") == 2
    s.machines[3].replace_disk()
    await s.machines[3].start()
    await s.until_in_sync(1, 2, 3)
    second = s.registration(1).leader
    assert s.keys(second).is_ready
    assert s.replica(3).append_extension is None
    s.machines[second].power_off()
    other = 1 if second == 2 else 2
    await s.until(lambda: s.registration(other).leader not in (NO_LEADER, second), 60)
    for number, key in enumerate((b"a", b"b", b"c")):
        assert await s.send(key, seen_by=other) == number
    assert await s.send(b"d", seen_by=other) == 3


@pytest.mark.parametrize("end", [kill, power_off, stop])
@pytest.mark.parametrize("seed", range(2))
def test_each_key_is_stored_once_although_the_leader_changes(end: End, seed: int) -> None:
    """The application crashes after each batch: another producer sends the last two again, in one batch."""

    async def produce(s: KeyCluster, count: int) -> None:
        known: dict[bytes, int] = {}
        for number in range(count):
            key, former = b"%d" % number, b"%d" % max(number - 1, 0)
            known[key] = await s.send(key, value=key, producer_id=2 * number, sequence=0)
            # Both are duplicates: the response has the offsets of their originals if it can express them.
            offset = await s.send(former, key, value=b"again", producer_id=2 * number + 1, sequence=0)
            assert offset == (known[former] if known[key] == known[former] + 1 else -2)
            await asyncio.sleep(0.05)

    async def test(s: KeyCluster) -> None:
        await s.create_topic(3, 1, 2, min_insync_replicas="2")
        producing = asyncio.ensure_future(produce(s, 150))
        for _ in range(2):
            leader = await s.leader()
            await asyncio.sleep(1)
            await end(s, leader)
            await s.leader(other_than=leader)
            await asyncio.sleep(1)
            await s.machines[leader].start()
            await s.until_in_sync(1, 2, 3)
        await producing
        leader = await s.leader()
        await s.until_equal(leader)
        assert [record.value for record in await s.read(leader)] == [b"%d" % number for number in range(150)]

    KeyCluster(seed).run(test)


@simulated(KeyCluster, range(2))
async def test_a_key_is_forgotten_with_its_truncated_record(s: KeyCluster) -> None:
    """The isolated leader has stored it, and has a snapshot with it. Afterwards other keys have its offsets."""
    await s.create_topic(3, 1, 2)
    assert await s.send(b"a", value=b"a") == 0
    s.isolate(3)
    for number, key in enumerate((b"lost", b"b")):
        records = build_batch([(s.now_ms(3), None, b"lost", ((KEY, key),))])
        response = await s.client(3, partial(Client.produce, topic="t", records=records, acks=1))
        assert (response.error_code, response.base_offset) == (0, number + 1)
    s.machines[3].loop.call_soon(s.keys(3).state.write_snapshot)
    await s.leader(other_than=3, seen_by=1)
    # It was not committed, so it is not a duplicate.
    assert await s.send(b"b", value=b"b", seen_by=1) == 1
    assert await s.send(b"c", value=b"c", seen_by=1) == 2
    s.heal(3)
    await s.until_in_sync(1, 2, 3)
    await s.make_only_replica_in_sync(3)
    assert await s.send(b"a", value=b"again") == 0
    assert await s.send(b"b", value=b"again") == 1
    assert await s.send(b"c", value=b"again") == 2
    assert await s.send(b"lost", value=b"found") == 3
    assert [record.value for record in await s.read(3)] == [b"a", b"b", b"c", b"found"]


@simulated(KeyCluster, range(2))
async def test_a_duplicate_is_acknowledged_when_its_original_is_committed(s: KeyCluster) -> None:
    await s.create_topic(3, 1, 2)
    assert await s.send(b"a") == 0
    s.isolate(3)
    outcomes = []
    for _ in range(2):
        records = build_batch([(s.now_ms(3), None, b"v", ((KEY, b"b"),))])
        produce = partial(Client.produce, topic="t", records=records, timeout_ms=60_000)
        outcomes.append(s.client(3, produce))
    codes = [response.error_code for response in await asyncio.gather(*outcomes)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    s.heal(3)
    await s.until_in_sync(1, 2, 3)
    assert await s.send(b"b") == 1


@simulated(KeyCluster, range(2))
async def test_keys_of_transactions_that_end_under_another_leader(s: KeyCluster) -> None:
    await s.create_topic(3, 1, 2, min_insync_replicas="2")
    await s.until(lambda: s.keys(3).is_ready, 10)
    for pid in (7, 8):
        partition = s.replica(3)
        batch = build_batch(
            [(s.now_ms(3), None, b"%d" % pid, ((KEY, b"%d" % pid),))],
            producer_id=pid, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL,
        )  # fmt: skip
        guard = partition.log.producers.begin_verification(pid, 0, 0, True)
        partition.append_as_leader(memoryview(batch), -1, 12, s.now_ms(3), True, guard, True)
    await s.until(lambda: s.replica(3).high_watermark == 2, 10)
    s.machines[3].kill()
    leader = await s.leader(other_than=3)
    await s.until(lambda: s.keys(leader).is_ready, 10)
    s.end_transaction(leader, 7, True)
    s.end_transaction(leader, 8, False)
    await s.until(lambda: s.replica(leader).log.log_end_offset == 4, 10)
    assert await s.send(b"7") == 0
    assert await s.send(b"8") == 4


@simulated(KeyCluster, range(2))
async def test_keys_move_with_their_partition(s: KeyCluster) -> None:
    await s.create_topic(1, 2)
    for number in range(20):
        assert await s.send(b"%d" % number) == number
    await s.reassign([3])
    await s.until(lambda: list(s.registration(1).replicas) == [3], 60)
    await s.until(lambda: s.registration(3).leader == 3, 10)
    for number in range(20):
        assert await s.send(b"%d" % number) == number
    assert await s.send(b"new") == 20
