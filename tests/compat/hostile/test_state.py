"""What a broker remembers for its clients, asked for without end: sessions, members, producers, offsets, topics."""

import pytest

from protocol.errors import ErrorCode
from protocol.framing import decode_response_header
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from protocol.messages.k18_api_versions import ApiVersionsRequest
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.records.batch import build_batch
from protocol.schema.codec import decode
from tests.compat.hostile.peer import Peer, create_topic, framed, produced
from tests.compat.hostile.target import MAX_MEMORY_GROWTH, Target
from tests.compat.support import eventually

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

NOW = 1_760_000_000_000
SECONDS = 1000


@pytest.fixture(scope="module", autouse=True)
def coordinator(shared_target: Target) -> None:
    """There is one from when it is asked for."""
    with Peer(shared_target.bootstrap, "setup") as peer:

        def found() -> bool:
            answer = peer.ask(FindCoordinatorRequest(key="g"), 1, FindCoordinatorResponse)
            joined = peer.ask(join("warm"), 9, JoinGroupResponse)
            return answer.error_code == 0 and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED

        eventually(found, "a coordinator")


def test_fetch_sessions_without_end(target: Target) -> None:
    """The cache has 1,000 places; who comes too late gets none and is answered all the same."""
    create_topic(target.bootstrap, "sessions", 100)
    wanted = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(100)]
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1000, session_epoch=0, topics=[FetchTopic(topic="sessions", partitions=wanted)]
    )
    frame = framed(request, 11)
    given = set()

    def attack() -> None:
        with Peer(target.bootstrap) as peer:
            for _ in range(300):
                peer.send(frame)
                answer = peer.answer()
                assert answer is not None
                given.add(answer[10:14])
                target.pace(2)

    target.attacked("fetch sessions of 100 partitions", attack)
    assert len(given) > 100


def test_fetch_sessions_of_partitions_without_end(target: Target) -> None:
    """15 sessions of 99,000 partitions that do not exist."""
    wanted = [FetchPartition(partition=index, partition_max_bytes=1000) for index in range(99_000)]
    request = FetchRequest(
        max_wait_ms=0, max_bytes=1000, session_epoch=0, topics=[FetchTopic(topic="absent", partitions=wanted)]
    )
    frame = framed(request, 11)
    with Peer(target.bootstrap) as peer:
        before = target.memory
        for _ in range(15):
            peer.send(frame)
            assert peer.answer() is not None
        growth = target.memory - before
        assert growth < MAX_MEMORY_GROWTH, growth


def join(group: str, member: str = "", metadata: bytes = b"m", names: int = 1) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name=f"p{number}", metadata=metadata) for number in range(names)]
    return JoinGroupRequest(
        group_id=group, member_id=member, session_timeout_ms=6 * SECONDS, rebalance_timeout_ms=6 * SECONDS,
        protocol_type="consumer", protocols=protocols,
    )  # fmt: skip


def test_member_ids_without_end(target: Target) -> None:
    """Asked for and never used (KIP-394), in one group and in ever new ones."""
    number = 0

    def attack() -> None:
        nonlocal number
        with Peer(target.bootstrap) as peer:
            for _ in range(500):
                number += 1
                group = "flood" if number % 2 else f"flood-{number}"
                answer = peer.ask(join(group), 9, JoinGroupResponse)
                assert answer.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED)
                target.pace()

    target.attacked("member ids", attack)


def test_protocol_metadata_of_megabytes(target: Target) -> None:
    """Each join brings 1 MB that the group would keep; nobody waits for the end of the rebalance."""

    def attack() -> None:
        peers = [Peer(target.bootstrap) for _ in range(10)]
        for peer in peers:
            answer = peer.ask(join("fat", metadata=bytes(100_000), names=10), 4, JoinGroupResponse)
            peer.send(framed(join("fat", answer.member_id, bytes(100_000), 10), 4))
            target.pace(20)
        for peer in peers:
            peer.close()

    target.attacked("members with 1 MB of metadata", attack)


def test_producer_ids_without_end(target: Target) -> None:
    """Each writes one record, so that the partition remembers it until producer.id.expiration.ms, as in Kafka."""
    create_topic(target.bootstrap, "producers")
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)

    def attack() -> None:
        with Peer(target.bootstrap) as peer:
            for _ in range(300):
                given = peer.ask(request, 4, InitProducerIdResponse)
                batch = build_batch(
                    [(NOW, b"k", b"v", ())], producer_id=given.producer_id, producer_epoch=0, base_sequence=0
                )
                assert produced(peer, "producers", bytes(batch)) == 0
                target.pace()

    target.attacked("producer ids", attack)


def commit(partitions: range, metadata: str) -> OffsetCommitRequest:
    rows = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=metadata)
        for index in partitions
    ]
    return OffsetCommitRequest(group_id="committer", topics=[OffsetCommitRequestTopic(name="offsets", partitions=rows)])


def test_offsets_for_what_does_not_exist(target: Target) -> None:
    create_topic(target.bootstrap, "offsets", 10)
    frame = framed(commit(range(10, 1010), "m"), 8)

    def attack() -> None:
        with Peer(target.bootstrap) as peer:
            for _ in range(3):
                assert peer.send(frame)
                assert peer.answer() is not None
                target.pace(50)

    target.attacked("offsets of 1,000 partitions that do not exist", attack)
    many = framed(commit(range(100_001), "m"), 8)
    with Peer(target.bootstrap) as peer:
        assert not peer.send(many) or peer.answer() is None


def test_long_metadata_of_offsets(target: Target) -> None:
    """Up to offset.metadata.max.bytes it is kept, beyond it is refused; what is kept is replaced."""

    def attack() -> None:
        with Peer(target.bootstrap) as peer:
            for _ in range(10):
                for size, code in ((30_000, ErrorCode.OFFSET_METADATA_TOO_LARGE), (4096, ErrorCode.NONE)):
                    answer = peer.ask(commit(range(10), "m" * size), 8, OffsetCommitResponse)
                    assert {row.error_code for row in answer.topics[0].partitions} == {code}
                    target.pace(10)

    target.attacked("metadata of offsets", attack)


def created(peer: Peer, topics: list[CreatableTopic]) -> set[int] | None:
    if not peer.send(framed(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7)):
        return None
    answer = peer.answer()
    if answer is None:
        return None
    response = decode(CreateTopicsResponse, answer, 7, decode_response_header(answer, 19, 7)[1])
    return {row.error_code for row in response.topics}


def test_topics_by_the_million(target: Target) -> None:
    """More than 100,000 in a frame, and one of 10 million partitions: refused."""
    topics = [CreatableTopic(name="t", num_partitions=1, replication_factor=1)] * 100_001
    million = framed(CreateTopicsRequest(topics=topics), 7)
    wide = [CreatableTopic(name="wide", num_partitions=10_000_000, replication_factor=1)]

    def attack() -> None:
        with Peer(target.bootstrap) as peer:
            assert not peer.send(million) or peer.answer() is None
        target.pace(300)
        with Peer(target.bootstrap) as peer:
            codes = created(peer, wide)
            assert codes is None or ErrorCode.NONE not in codes
        target.pace(300)

    target.attacked("topics by the million", attack)


def test_config_values_that_are_work(target: Target) -> None:
    """Long lists, long numbers, and what a bad regular expression would take for ever over."""
    create_topic(target.bootstrap, "configs")
    values = {
        "cleanup.policy": "delete," * 4000, "retention.ms": "9" * 30_000, "compression.type": "a" * 32_000,
        "leader.replication.throttled.replicas": "1:1," * 8000, "min.cleanable.dirty.ratio": "0." + "1" * 30_000,
        "message.timestamp.type": "(a+)+" * 5000,
    }  # fmt: skip

    def attack() -> None:
        with Peer(target.bootstrap) as peer:
            for name, value in values.items():
                row = AlterableConfig(name=name, config_operation=0, value=value)
                resource = AlterConfigsResource(resource_type=2, resource_name="configs", configs=[row])
                request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
                peer.ask(request, 1, IncrementalAlterConfigsResponse)
                target.pace(10)

    target.attacked("values of configs", attack)


def test_the_broker_serves_everybody_afterwards(target: Target) -> None:
    with Peer(target.bootstrap) as peer:
        assert peer.send(framed(ApiVersionsRequest(), 0))
        assert peer.answer() is not None
    assert "request failed" not in target.log()
    assert "internal error" not in target.log()
