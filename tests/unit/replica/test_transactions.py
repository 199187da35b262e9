"""Transactions in partitions: the last stable offset, waiting fetches, appends, markers."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.replica.produce.marker_appends import PARTITIONS_AT_ONCE
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.storage.producers.transactions import TransactionMarker, VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, build_batch, parse_header
from tests.unit.support.client import EPOCH_MS, Client, base_offsets, batch, values_of
from tests.unit.support.deletion import delete_records
from tests.unit.support.simulated_broker import Machine, broker_test

T = TopicPartition("t", 0)
LONG_MS = 100_000


def data(sequence: int, value: bytes = b"v", *, pid: int = 7, epoch: int = 0, txn: bool = True) -> bytearray:
    attributes = TRANSACTIONAL if txn else 0
    at = {"producer_id": pid, "producer_epoch": epoch, "base_sequence": sequence}
    return build_batch([(EPOCH_MS, None, value, ())], attributes=attributes, **at)


class Writer:
    """Appends to the partition as request handlers and the transaction coordinator do."""

    def __init__(self, m: Machine) -> None:
        self.m = m

    @property
    def replicas(self) -> ReplicaManager:
        return self.m.broker.services.replicas

    def begin(self, records: bytearray, uses_transactions_v2: bool = True) -> VerificationGuard | None:
        header = parse_header(records)
        return self.m.partition("t").log.producers.begin_verification(
            header.producer_id, header.producer_epoch, header.base_sequence, uses_transactions_v2
        )

    def append(self, records: bytearray, guard: VerificationGuard | None = None, *, transactional: bool = True) -> int:
        """Append a batch, and return its base offset. `transactional`: the request has a transactional id."""
        services = self.m.broker.services
        now_ms, must_verify = (
            services.environment.clock.now_ms(),
            services.config.transaction_partition_verification_enable,
        )
        partition = self.m.partition("t")
        return partition.append_as_leader(memoryview(records), -1, 12, now_ms, transactional, guard, must_verify)[0]

    def write(self, records: bytearray) -> int:
        return self.append(records, self.begin(records))

    def refusal(
        self, records: bytearray, guard: VerificationGuard | None = None, *, transactional: bool = True
    ) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            self.append(records, guard, transactional=transactional)
        return refused.value.code

    def send_end(self, **fields: Any) -> "asyncio.Future[ErrorCode]":
        marker = TransactionMarker(**{
            "producer_id": 7, "producer_epoch": 1, "committed": True, "coordinator_epoch": 0, "transaction_version": 2,
            **fields,
        })  # fmt: skip
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.replicas.append_marker(T, marker, done.set_result)
        return done

    async def end(self, **fields: Any) -> ErrorCode:
        return await self.send_end(**fields)


async def begin(m: Machine, **configs: Any) -> tuple[Client, Writer]:
    client = await m.client()
    await client.create_topic("t", **configs)
    return client, Writer(m)


async def fetch_committed(
    client: Client, offset: int = 0, **options: Any
) -> tuple[list[bytes], int, list[tuple[int, int]]]:
    """Return the values, the last stable offset, and (producer id, first offset) of the aborted transactions."""
    response = await client.fetch_partition("t", offset, isolation_level=1, **options)
    aborted = [(row.producer_id, row.first_offset) for row in response.aborted_transactions or ()]
    return values_of(response, offset), response.last_stable_offset, aborted


# The last stable offset.


@broker_test
async def test_the_last_stable_offset_is_that_of_the_open_transaction(m: Machine) -> None:
    client, writer = await begin(m)
    await client.produce("t", batch(b"before"))
    writer.write(data(0, b"open"))
    await client.produce("t", batch(b"after"))
    assert await fetch_committed(client) == ([b"before"], 1, [])
    assert await client.read("t") == [b"before", b"open", b"after"]
    assert await writer.end() == ErrorCode.NONE
    values, stable, aborted = await fetch_committed(client)
    assert (values[:3], stable, aborted) == ([b"before", b"open", b"after"], 4, [])


@broker_test
async def test_the_first_of_several_open_transactions_counts(m: Machine) -> None:
    client, writer = await begin(m)
    for n in range(3):
        writer.write(data(0, b"%d" % n, pid=n))
    assert await writer.end(producer_id=1) == ErrorCode.NONE
    assert (await fetch_committed(client))[1] == 0
    assert await writer.end(producer_id=0, committed=False) == ErrorCode.NONE
    # The transaction of producer 2, which is open, begins at offset 2.
    assert (await fetch_committed(client))[1:] == (2, [(0, 0)])
    assert await writer.end(producer_id=2) == ErrorCode.NONE
    assert (await fetch_committed(client))[1] == 6


@broker_test
async def test_only_aborted_transactions_of_the_fetched_range_are_returned(m: Machine) -> None:
    client, writer = await begin(m)
    for n in range(6):
        writer.write(data(0, b"%d" % n, epoch=n))
        assert await writer.end(producer_epoch=n + 1, committed=False) == ErrorCode.NONE
    first = await fetch_committed(client, partition_max_bytes=1)
    assert first[2] == [(7, 0)]
    assert (await fetch_committed(client, 4, partition_max_bytes=200))[2] == [(7, 4)]
    assert (await fetch_committed(client))[2] == [(7, 2 * n) for n in range(6)]
    assert (await fetch_committed(client, 12))[2] == []


@broker_test
async def test_an_abort_marker_without_records(m: Machine) -> None:
    client, writer = await begin(m)
    assert await writer.end(committed=False) == ErrorCode.NONE
    await client.produce("t", batch(b"a"))
    assert (await fetch_committed(client))[1:] == (2, [])


@broker_test
async def test_deleted_records_of_an_open_transaction(m: Machine) -> None:
    client, writer = await begin(m)
    writer.write(data(0))
    writer.write(data(1))
    partition = m.partition("t")
    await delete_records(writer.replicas, partition, 1)
    assert (partition.log.log_start_offset, partition.last_stable_offset) == (1, 1)
    await writer.end(committed=False)
    assert (await fetch_committed(client, 1))[1:] == (3, [(7, 0)])


@broker_test
async def test_an_open_transaction_survives_a_restart(m: Machine) -> None:
    client, writer = await begin(m)
    writer.write(data(0))
    await writer.end(committed=False)
    writer.write(data(0, epoch=1))
    for kill in (False, True):
        await (m.crash() if kill else m.stop())
        await m.start()
        client = await m.client()
        assert (await fetch_committed(client))[1:] == (2, [(7, 0)])
    assert await writer.end(producer_epoch=2) == ErrorCode.NONE
    assert (await fetch_committed(client))[1] == 4


# Waiting.


@broker_test
async def test_a_marker_completes_a_fetch_of_committed_records(m: Machine) -> None:
    client, writer = await begin(m)
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=150, isolation_level=1)
    writer.write(data(0, bytes(300)))
    await asyncio.sleep(1)
    assert not waiting.done()
    began = m.elapsed_ms
    await writer.end()
    assert base_offsets(await waiting) == {("t", 0): [0, 1]}
    assert m.elapsed_ms - began < 5


@broker_test
async def test_min_bytes_count_stable_bytes(m: Machine) -> None:
    client, writer = await begin(m)
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS, min_bytes=1200, isolation_level=1)
    for n in range(4):
        assert not waiting.done()
        writer.write(data(0, bytes(200), epoch=n))
        await writer.end(producer_epoch=n + 1)
        await asyncio.sleep(1)
    assert base_offsets(await waiting) == {("t", 0): list(range(8))}


@broker_test
async def test_a_fetch_of_uncommitted_records_does_not_wait_for_the_marker(m: Machine) -> None:
    client, writer = await begin(m)
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=LONG_MS)
    writer.write(data(0))
    assert base_offsets(await waiting) == {("t", 0): [0]}


# What may be appended.


@broker_test
async def test_a_transaction_begins_only_with_its_guard(m: Machine) -> None:
    _, writer = await begin(m)
    assert writer.refusal(data(0)) == ErrorCode.INVALID_TXN_STATE
    guard = writer.begin(data(0))
    assert guard is not None
    assert writer.begin(data(1)) is guard
    assert writer.refusal(data(0), VerificationGuard()) == ErrorCode.INVALID_TXN_STATE
    assert writer.append(data(0), guard) == 0
    # It is open now, so there is nothing to verify.
    assert writer.begin(data(1)) is None
    assert writer.append(data(1)) == 1
    # A retry gets the offset of the original, even without a guard.
    assert writer.append(data(0)) == 0


@broker_test
async def test_a_guard_is_invalid_after_a_marker(m: Machine) -> None:
    """The coordinator confirmed the partition, but aborted the transaction before the append."""
    _, writer = await begin(m)
    guard = writer.begin(data(0))
    await writer.end(producer_epoch=0, transaction_version=1, committed=False)
    assert writer.refusal(data(0), guard) == ErrorCode.INVALID_TXN_STATE


@broker_test
async def test_without_verification_a_transaction_needs_no_guard(m: Machine) -> None:
    await m.restart(transaction_partition_verification_enable=False)
    _, writer = await begin(m)
    assert writer.append(data(0)) == 0


@broker_test
async def test_a_producer_with_an_open_transaction_writes_only_transactional_batches(m: Machine) -> None:
    _, writer = await begin(m)
    writer.write(data(0))
    assert writer.refusal(data(1, txn=False), transactional=False) == ErrorCode.INVALID_TXN_STATE
    await writer.end()
    assert writer.append(data(0, epoch=1, txn=False)) == 2


@broker_test
async def test_transactional_batches_of_a_request_without_transactional_id(m: Machine) -> None:
    _, writer = await begin(m)
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert writer.refusal(data(0), transactional=False) == code


@broker_test
async def test_an_older_epoch_is_fenced_before_verification(m: Machine) -> None:
    _, writer = await begin(m)
    writer.write(data(0, epoch=3))
    assert writer.refusal(data(0, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError) as refused:
        writer.begin(data(0, epoch=2))
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


@broker_test
async def test_batches_of_a_coordinator(m: Machine) -> None:
    _, writer = await begin(m)
    replicas = writer.replicas
    with pytest.raises(KafkaError) as refused:
        replicas.append_internal(T, data(-1), verify=True)
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE
    guard = replicas.begin_verification(T, 7, 0)
    assert replicas.append_internal(T, data(-1), guard=guard, verify=True) == 1
    assert replicas.append_internal(T, data(-1), verify=True) == 2
    assert m.partition("t").last_stable_offset == 0
    assert [state[1:3] for state in m.partition("t").log.producers.active()] == [(0, -1)]
    await writer.end()
    assert m.partition("t").last_stable_offset == 3


# Markers.


@broker_test
async def test_markers_of_one_iteration_share_a_write(m: Machine) -> None:
    _, writer = await begin(m)
    for pid in range(20):
        writer.write(data(0, pid=pid))
    log, end = m.partition("t").log, m.partition("t").log.log_end_offset
    writes = 0
    file = log.active.file
    assert file is not None
    original = file.append

    class Counting:
        def append(self, data: bytes) -> int:
            nonlocal writes
            writes += 1
            return original(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

    log.active.file = Counting()
    ends = [writer.send_end(producer_id=pid, committed=pid % 2 == 0) for pid in range(20)]
    assert [await end for end in ends] == [ErrorCode.NONE] * 20
    assert (writes, log.log_end_offset) == (1, end + 20)
    assert len(log.active.indexes.transaction) == 10


@broker_test
async def test_a_marker_is_committed_when_it_is_synced(m: Machine) -> None:
    _, writer = await begin(m, flush_before_ack=True)
    writer.write(data(0))
    await asyncio.sleep(1)
    m.threads.held.add("flush_blocking")
    done = writer.send_end()
    await asyncio.sleep(1)
    assert not done.done()
    assert m.partition("t").last_stable_offset == 0
    m.threads.release("flush_blocking")
    assert await done == ErrorCode.NONE
    assert m.partition("t").last_stable_offset == 2


@broker_test
@pytest.mark.parametrize(
    ("known", "marker", "expected"),
    [
        # Transactions version 2: the epoch must exceed that of the data.
        (3, {"producer_epoch": 3}, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, {"producer_epoch": 2}, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, {"producer_epoch": 4}, ErrorCode.NONE),
        # The largest epoch cannot be incremented.
        (32767, {"producer_epoch": 32767}, ErrorCode.NONE),
        # Older versions: the epoch of the data.
        (3, {"producer_epoch": 3, "transaction_version": 1}, ErrorCode.NONE),
        (3, {"producer_epoch": 3, "transaction_version": 0}, ErrorCode.NONE),
        (3, {"producer_epoch": 2, "transaction_version": 1}, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_epochs_of_markers(m: Machine, known: int, marker: dict[str, Any], expected: ErrorCode) -> None:
    _, writer = await begin(m)
    writer.write(data(0, epoch=known))
    assert await writer.end(**marker) == expected
    assert (m.partition("t").last_stable_offset == 0) == (expected != ErrorCode.NONE)


@broker_test
async def test_a_repeated_marker_has_no_effect_and_a_late_one_is_refused(m: Machine) -> None:
    _, writer = await begin(m)
    writer.write(data(0))
    assert await writer.end() == ErrorCode.NONE
    assert await writer.end() == ErrorCode.NONE
    writer.write(data(0, epoch=1))
    assert await writer.end() == ErrorCode.INVALID_PRODUCER_EPOCH
    assert m.partition("t").last_stable_offset == 3


@broker_test
async def test_an_older_coordinator_is_fenced(m: Machine) -> None:
    _, writer = await begin(m)
    assert await writer.end(coordinator_epoch=5) == ErrorCode.NONE
    assert await writer.end(producer_epoch=2, coordinator_epoch=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await writer.end(producer_epoch=2, coordinator_epoch=5) == ErrorCode.NONE


@broker_test
async def test_two_markers_of_a_producer_in_one_iteration(m: Machine) -> None:
    _, writer = await begin(m)
    writer.write(data(0))
    first, second, late = writer.send_end(), writer.send_end(producer_epoch=2), writer.send_end(producer_epoch=1)
    assert [await first, await second, await late] == [0, 0, ErrorCode.INVALID_PRODUCER_EPOCH]


@broker_test
async def test_markers_of_many_partitions_are_appended_in_several_iterations(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 3 * PARTITIONS_AT_ONCE)
    replicas = m.broker.services.replicas
    partitions = [m.partition("t", index) for index in range(3 * PARTITIONS_AT_ONCE)]
    codes: list[ErrorCode] = []
    for partition in partitions:
        for epoch in (1, 2):
            replicas.append_marker(partition.tp, TransactionMarker(7, epoch, True, 0, 2), codes.append)
    appended = []
    while not appended or appended[-1] < len(partitions):
        await asyncio.sleep(0)
        appended.append(sum(partition.log.log_end_offset > 0 for partition in partitions))
    assert [later - before for before, later in pairwise([0, *appended])] == [PARTITIONS_AT_ONCE] * 3
    assert codes == [ErrorCode.NONE] * 2 * len(partitions)


@broker_test
async def test_markers_for_partitions_that_do_not_exist(m: Machine) -> None:
    client, writer = await begin(m)
    codes: list[ErrorCode] = []
    marker = TransactionMarker(7, 1, True, 0, 2)
    writer.replicas.append_marker(TopicPartition("u", 0), marker, codes.append)
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    writer.write(data(0))
    done = writer.send_end()
    await client.delete_topic("t")
    assert await done in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@broker_test
async def test_a_marker_needs_min_insync_replicas(m: Machine) -> None:
    _, writer = await begin(m, min_insync_replicas=2)
    m.partition("t").state.update_replicas_and_isr([1, 2], [1])
    assert await writer.end() == ErrorCode.NOT_ENOUGH_REPLICAS


@broker_test
async def test_the_producer_state_shows_the_open_transaction(m: Machine) -> None:
    _, writer = await begin(m)
    writer.write(data(0))
    (producer,) = m.partition("t").log.producers.active()
    assert (producer.producer_epoch, producer.last_sequence, producer.current_txn_start_offset) == (0, 0, 0)
    await writer.end(coordinator_epoch=9)
    (producer,) = m.partition("t").log.producers.active()
    assert (producer.producer_epoch, producer.coordinator_epoch, producer.current_txn_start_offset) == (1, 9, -1)
