"""Unbounded requests for what a broker keeps in memory: sessions, members, producers, offsets, topics."""

import pytest

from protocol.errors import ErrorCode
from protocol.framing import decode_response_header
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k11_classic_groups import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from protocol.messages.k18_api_versions import ApiVersionsRequest
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.records.batch import build_batch
from protocol.schema.codec import decode
from tests.compat.hostile.raw_client import RawClient, create_topic, framed, produce_batch
from tests.compat.hostile.target import MAX_MEMORY_GROWTH, Target
from tests.compat.support import eventually

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

NOW = 1_760_000_000_000
SECONDS = 1000


@pytest.fixture(scope="module", autouse=True)
def coordinator(shared_target: Target) -> None:
    """Wait until the group coordinator is available: the first FindCoordinator creates it."""
    with RawClient(shared_target.bootstrap, "setup") as client:

        def found() -> bool:
            response = client.request(FindCoordinatorRequest(key="g"), 1, FindCoordinatorResponse)
            joined = client.request(join("warm"), 9, JoinGroupResponse)
            return response.error_code == 0 and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED

        eventually(found, "a coordinator")


def test_many_fetch_sessions(target: Target) -> None:
    """The cache has 1,000 slots; a client that gets none is served without a session."""
    create_topic(target.bootstrap, "sessions", 100)
    partitions = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(100)]
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1000, session_epoch=0, topics=[FetchTopic(topic="sessions", partitions=partitions)]
    )
    frame = framed(request, 11)
    session_ids = set()

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            for _ in range(300):
                client.try_send(frame)
                response = client.try_receive()
                assert response is not None
                session_ids.add(response[10:14])
                target.pace(2)

    target.attacked("fetch sessions of 100 partitions", attack)
    assert len(session_ids) > 100


def test_large_fetch_sessions(target: Target) -> None:
    """6 sessions have 99,000 partitions each, which do not exist."""
    partitions = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(99_000)]
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1000, session_epoch=0, topics=[FetchTopic(topic="absent", partitions=partitions)]
    )
    frame = framed(request, 11)
    with RawClient(target.bootstrap) as client:
        before = target.memory
        for _ in range(6):
            client.try_send(frame)
            assert client.try_receive() is not None
        growth = target.memory - before
        assert growth < MAX_MEMORY_GROWTH, growth


def join(group: str, member: str = "", metadata: bytes = b"m", names: int = 1) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name=f"p{number}", metadata=metadata) for number in range(names)]
    return JoinGroupRequest(
        group_id=group, member_id=member, session_timeout_ms=6 * SECONDS, rebalance_timeout_ms=6 * SECONDS,
        protocol_type="consumer", protocols=protocols,
    )  # fmt: skip


def test_many_member_ids(target: Target) -> None:
    """Clients request member ids that they never use (KIP-394), in one group and in many."""
    number = 0

    def attack() -> None:
        nonlocal number
        with RawClient(target.bootstrap) as client:
            for _ in range(500):
                number += 1
                group = "flood" if number % 2 else f"flood-{number}"
                response = client.request(join(group), 9, JoinGroupResponse)
                assert response.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED)
                target.pace()

    target.attacked("member ids", attack)


def test_protocol_metadata_of_megabytes(target: Target) -> None:
    """Each join has 1 MB of metadata; the clients do not wait for the end of the rebalance."""

    def attack() -> None:
        clients = [RawClient(target.bootstrap) for _ in range(10)]
        for client in clients:
            response = client.request(join("fat", metadata=bytes(100_000), names=10), 4, JoinGroupResponse)
            client.try_send(framed(join("fat", response.member_id, bytes(100_000), 10), 4))
            target.pace(20)
        for client in clients:
            client.close()

    target.attacked("members with 1 MB of metadata", attack)


def test_many_producer_ids(target: Target) -> None:
    """Each writes one record, so that the partition keeps its state for producer.id.expiration.ms, as in Kafka."""
    create_topic(target.bootstrap, "producers")
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            for _ in range(300):
                producer = client.request(request, 4, InitProducerIdResponse)
                batch = build_batch(
                    [(NOW, b"k", b"v", ())], producer_id=producer.producer_id, producer_epoch=0, base_sequence=0
                )
                assert produce_batch(client, "producers", bytes(batch)) == 0
                target.pace()

    target.attacked("producer ids", attack)


def commit(partitions: range, metadata: str) -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=metadata)
        for index in partitions
    ]
    return OffsetCommitRequest(group_id="committer", topics=[OffsetCommitRequestTopic(name="offsets", partitions=rows)])


def test_offsets_of_unknown_partitions(target: Target) -> None:
    create_topic(target.bootstrap, "offsets", 10)
    frame = framed(commit(range(10, 1010), "m"), 8)

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            for _ in range(3):
                assert client.try_send(frame)
                assert client.try_receive() is not None
                target.pace(50)

    target.attacked("offsets of 1,000 partitions that do not exist", attack)
    many = framed(commit(range(100_001), "m"), 8)
    with RawClient(target.bootstrap) as client:
        assert not client.try_send(many) or client.try_receive() is None


def test_long_offset_metadata(target: Target) -> None:
    """Metadata of up to offset.metadata.max.bytes is stored, longer metadata is rejected."""

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            for _ in range(10):
                for size, code in ((30_000, ErrorCode.OFFSET_METADATA_TOO_LARGE), (4096, ErrorCode.NONE)):
                    response = client.request(commit(range(10), "m" * size), 8, OffsetCommitResponse)
                    assert {row.error_code for row in response.topics[0].partitions} == {code}
                    target.pace(10)

    target.attacked("metadata of offsets", attack)


def created(client: RawClient, topics: list[CreatableTopic]) -> set[int] | None:
    if not client.try_send(framed(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7)):
        return None
    response = client.try_receive()
    if response is None:
        return None
    response = decode(CreateTopicsResponse, response, 7, decode_response_header(response, 19, 7)[1])
    return {row.error_code for row in response.topics}


def test_millions_of_topics(target: Target) -> None:
    """More than 100,000 topics in a request, and a topic with 10 million partitions, are rejected."""
    topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)] * 100_001
    million = framed(CreateTopicsRequest(topics=topics), 7)
    wide = [CreatableTopic(name="wide", num_partitions=10_000_000, replication_factor=1)]

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            assert not client.try_send(million) or client.try_receive() is None
        target.pace(300)
        with RawClient(target.bootstrap) as client:
            codes = created(client, wide)
            assert codes is None or ErrorCode.NONE not in codes
        target.pace(300)

    target.attacked("millions of topics", attack)


def test_expensive_config_values(target: Target) -> None:
    """The values are long lists, long numbers, and one on which a bad regular expression would take forever."""
    create_topic(target.bootstrap, "configs")
    values = {
        "cleanup.policy": "delete," * 4000, "retention.ms": "9" * 30_000, "compression.type": "a" * 32_000,
        "leader.replication.throttled.replicas": "1:1," * 8000, "min.cleanable.dirty.ratio": "0." + "1" * 30_000,
        "message.timestamp.type": "(a+)+" * 5000,
    }  # fmt: skip

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            for name, value in values.items():
                row = AlterableConfig(name=name, config_operation=0, value=value)
                resource = AlterConfigsResource(resource_type=2, resource_name="configs", configs=[row])
                request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
                client.request(request, 1, IncrementalAlterConfigsResponse)
                target.pace(10)

    target.attacked("values of configs", attack)


def test_the_broker_still_works_afterwards(target: Target) -> None:
    with RawClient(target.bootstrap) as client:
        assert client.try_send(framed(ApiVersionsRequest(), 0))
        assert client.try_receive() is not None
    assert "request failed" not in target.log()
    assert "internal error" not in target.log()
