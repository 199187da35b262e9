"""No key, value, header or secret is written to the log, whatever error a request gets.

All of these contain a marker, which must not be in the log lines, at level DEBUG and in both formats.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.runtime.event_log import formatter
from kbroker.server import error_reporter
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import ProduceResponse
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k11_classic_groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from protocol.messages.k33_alter_configs import (
    AlterableConfig as FullConfig,
)
from protocol.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from protocol.messages.k33_alter_configs import (
    AlterConfigsResource as FullResource,
)
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.records.batch import CRC_POS, CRC_START, TRANSACTIONAL, build_batch
from protocol.records.record import Headers
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, broker_test

MARKER = "mArKeD"
PAYLOAD = MARKER.encode() * 3
SECRETS = ("ssl.keystore.password", "sasl.jaas.config", "ssl.key.password", "delegation.token.secret.key")


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yield the list of lines that the broker logs, in both formats."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend(formatter(form).format(record) for form in ("text", "json"))

    handler, logger = Keep(), logging.getLogger("kbroker")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def records(count: int = 2, key: bytes | None = PAYLOAD, at_ms: int = EPOCH_MS, **options: int) -> bytearray:
    headers: Headers = [(PAYLOAD, PAYLOAD)]
    return build_batch([(at_ms, key, PAYLOAD, headers)] * count, **options)


# Requests that get an error.

Case = Callable[[Machine, Client], Awaitable[object]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def produces(name: str, records: Callable[[], bytearray | None], topic: str = "t", partition: int = 0) -> None:
    async def produce(m: Machine, client: Client) -> None:
        for version in (3, 12):
            response = await client.produce(topic, records(), partition, version=version)
            assert response.error_code, name

    CASES[name] = produce


def damaged(at: int) -> bytearray:
    batch = records()
    batch[at] ^= 0x55
    return batch


def damaged_record() -> bytearray:
    """Return a batch with a valid CRC and a record with a wrong length."""
    batch = records()
    batch[61] += 2
    batch[CRC_POS:CRC_START] = crc32c(batch[CRC_START:]).to_bytes(4, "big")
    return batch


produces("unknown_topic", records, "nothing")
produces("unknown_partition", records, partition=7)
produces("internal_topic", records, "__consumer_offsets")
produces("crc", lambda: damaged(-1))
produces("magic", lambda: damaged(16))
produces("length", lambda: damaged(11))
produces("count", lambda: damaged(60))
produces("no_records", lambda: None)
produces("cut_off", lambda: records()[:-3])
produces("two_batches", lambda: records() + records())
produces("too_large", lambda: records(100), "small")
produces("null_key", lambda: records(key=None), "compacted")
produces("timestamp", lambda: records(at_ms=1), "dated")
produces("control", lambda: records(attributes=0x20))
produces("no_sequence", lambda: records(producer_id=1, producer_epoch=0, base_sequence=-1))
produces("record_offset", damaged_record, "walked")


@case
async def acks_0(m: Machine, client: Client) -> None:
    client.produce_acks_0("nothing", records())
    await client.closed


@case
async def wrong_acks(m: Machine, client: Client) -> None:
    await client.request(client.produce_request("t", {0: records()}, acks=9), 9, ProduceResponse)


@case
async def transactional(m: Machine, client: Client) -> None:
    """Send transactional batches with an unknown transactional id, and without one."""
    batch = records(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)
    for transactional_id in ("tx", None):
        for version in (9, 12):
            request = client.produce_request("t", {0: batch})
            request.transactional_id = transactional_id
            response = await client.request(request, version, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code != 0


@case
async def full_disk(m: Machine, client: Client) -> None:
    m.disk.capacity = m.disk.used
    assert (await client.produce("t", records(50))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    m.disk.capacity = None


@case
async def internal_error(m: Machine, client: Client) -> None:
    def fail(*args: object) -> None:
        raise KeyError(repr(args), PAYLOAD, MARKER)

    m.broker.services.replicas.append_records = fail  # type: ignore[method-assign, assignment]
    client.send_produce("t", records())
    await client.closed
    del m.broker.services.replicas.append_records


@case
async def commits(m: Machine, client: Client) -> None:
    for member, metadata in (("", MARKER * 5000), ("nobody", MARKER)):
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=metadata)
        request = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=-1 if not member else 5, member_id=member,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
        )  # fmt: skip
        response = await client.request(request, 8, OffsetCommitResponse)
        assert response.topics[0].partitions[0].error_code


@case
async def members(m: Machine, client: Client) -> None:
    for protocol_type, session_ms in (("consumer", 1), ("", 10_000), ("consumer", 10_000)):
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=session_ms, rebalance_timeout_ms=10_000, protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=PAYLOAD)],
        )  # fmt: skip
        assert (await client.request(join, 7, JoinGroupResponse)).error_code
    sync = SyncGroupRequest(
        group_id="g", generation_id=1, member_id="nobody", protocol_type="consumer", protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id="nobody", assignment=PAYLOAD)],
    )  # fmt: skip
    assert (await client.request(sync, 5, SyncGroupResponse)).error_code


@case
async def secrets(m: Machine, client: Client) -> None:
    """Passwords, accepted and rejected, of several resources and operations."""
    for kind, name in ((4, "1"), (4, ""), (4, "99"), (2, "t"), (2, "nothing"), (32, "g"), (8, "1"), (77, "x")):
        for config in (*SECRETS, "no.such.config", "listener.name.internal.ssl.key.password"):
            for operation in (0, 1, 2, 3, 9):
                changes = [AlterableConfig(name=config, config_operation=operation, value=MARKER)]
                resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
                request = IncrementalAlterConfigsRequest(resources=[resource])
                await client.request(request, 1, IncrementalAlterConfigsResponse)
            full_resource = FullResource(
                resource_type=kind, resource_name=name, configs=[FullConfig(name=config, value=MARKER)]
            )
            await client.request(AlterConfigsRequest(resources=[full_resource]), 2, AlterConfigsResponse)


@case
async def connections(m: Machine, client: Client) -> None:
    """Frames after which the connection is closed: too large, unknown API or version, a body that ends early."""
    for head in (
        (1 << 30).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"\0\0\0\x40" + b"\x7f\x00\0\1\0\0\0\1\xff\xff",
        b"\0\0\0\x40" + b"\0\0\x7f\x00\0\0\0\1\xff\xff",
        b"\0\0\0\x40" + b"\0\3\0\x09\0\0\0\1\x7f\xff",
        b"\0\0\0\x40" + b"\0\0\0\x0c\0\0\0\1\xff\xff\0",
    ):
        other = await m.client()
        other.transport.write(head + PAYLOAD * 20)
        await other.closed


async def prepared(m: Machine) -> Client:
    client = await m.client()
    await client.create_topic("t")
    await client.create_topic("small", max_message_bytes=200)
    await client.create_topic("compacted", cleanup_policy="compact")
    await client.create_topic("dated", message_timestamp_before_max_ms=1000)
    await client.create_topic("walked", kbroker_record_validation="full")
    await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 4, FindCoordinatorResponse)
    await asyncio.sleep(1)
    return client


@pytest.mark.parametrize("name", CASES)
def test_errors_are_logged_without_payload(name: str) -> None:
    @broker_test
    async def run(m: Machine) -> None:
        await CASES[name](m, await prepared(m))

    with logged() as lines:
        run()
    relevant = [line for line in lines if " refused " in line or " closed " in line or " failed " in line]
    assert relevant, "nothing was logged"
    assert [line for line in lines if MARKER in line] == []


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_batches_are_logged_without_payload(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from([0, 1, 2, 3, 4]))
    batches = []
    for _ in range(10):
        batch = records(data.draw(st.integers(1, 5)), codec=codec)
        for _ in range(data.draw(st.integers(1, 4))):
            batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            # The fields after the CRC are read only if it is right.
            batch[CRC_POS : CRC_POS + 4] = crc32c(batch[CRC_START:]).to_bytes(4, "big")
        batches.append(batch[: data.draw(st.integers(0, len(batch)))] if data.draw(st.booleans()) else batch)

    @broker_test
    async def run(m: Machine) -> None:
        client = await prepared(m)
        for batch in batches:
            for topic in ("walked", "compacted"):
                await client.produce(topic, batch)

    with logged() as lines:
        run()
    assert [line for line in lines if MARKER in line] == []


def test_a_logged_payload_would_be_found() -> None:
    with logged() as lines:
        error_reporter.log.info("request refused", value=PAYLOAD.decode())
    assert len([line for line in lines if MARKER in line]) == 2
