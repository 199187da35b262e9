"""FindCoordinator in every version: several keys, the creation of internal topics, errors."""

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.coordinator.runtime.coordinator_runtime import MAX_LOAD_WAIT_S
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from protocol.messages.k11_classic_groups import JoinGroupRequest, JoinGroupRequestProtocol
from tests.unit.support.group_coordinator import NODE, Harness
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import Producer

GROUP, SHARE = 0, 2


def find(broker: Harness, version: int, key: str = "g", key_type: int = GROUP) -> tuple[int, int, str, int, str | None]:
    """Return (error, node id, host, port, message)."""
    request = FindCoordinatorRequest()
    if version:
        request.key_type = key_type
    if version < 4:
        request.key = key
    else:
        request.coordinator_keys = [key]
    response = broker.call(request, version)
    coordinator = response if version < 4 else response.coordinators[0]
    return (coordinator.error_code, coordinator.node_id, coordinator.host, coordinator.port, coordinator.error_message)


@pytest.mark.parametrize("version", range(7))
def test_every_version_finds_the_coordinator_of_a_group(group_broker: Harness, version: int) -> None:
    # The messages are Apache Kafka's.
    message = "NONE" if 1 <= version < 4 else ""
    assert find(group_broker, version) == (0, NODE, "127.0.0.1", 9092, message)


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize(
    ("key_type", "error"),
    [(SHARE, ErrorCode.INVALID_REQUEST), (3, ErrorCode.INVALID_REQUEST), (-1, ErrorCode.INVALID_REQUEST)],
)
def test_there_are_coordinators_of_groups_and_transactions_only(
    group_broker: Harness, version: int, key_type: int, error: ErrorCode
) -> None:
    assert find(group_broker, version, key_type=key_type)[:4] == (error, -1, "", -1)
    assert not error.retriable


def test_the_results_of_several_keys_are_in_their_order(group_broker: Harness) -> None:
    request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["b", "", "a"])
    response = group_broker.call(request, 4)
    assert [(row.key, row.error_code, row.node_id) for row in response.coordinators] == [
        ("b", 0, NODE),
        ("", 0, NODE),
        ("a", 0, NODE),
    ]


def test_the_first_request_creates_the_topic_and_the_group_can_be_joined_at_once() -> None:
    broker = Harness(with_topic=False)
    assert GROUP_METADATA_TOPIC not in broker.metadata.topics
    assert find(broker, 4)[:2] == (0, NODE)
    assert len(broker.metadata.topics[GROUP_METADATA_TOPIC].partitions) == broker.config.offsets_topic_num_partitions
    join = JoinGroupRequest(
        group_id="g", session_timeout_ms=1000, protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="p")]
    )
    assert broker.call(join, 4).error_code == ErrorCode.MEMBER_ID_REQUIRED
    broker.close()


def elect_with_uncommitted_records(broker: Harness) -> None:
    """Elect the broker again for the partition of the group "g", which it has not loaded before all is committed."""
    broker.log.held = True
    record = OffsetRecord(OffsetKey("g", "t", 0), OffsetAndMetadata(5))
    broker.groups.commit_offsets("g", Committer("", None, -1, 8), [record], lambda _, error: None)
    broker.loop.run_ready()
    broker.run(broker.elect(broker.groups.runtime.partition_for("g"), NODE))


@pytest.mark.parametrize("keys", [["g"], ["other", "g"]])
def test_the_response_waits_until_the_partition_is_loaded(keys: list[str]) -> None:
    """After COORDINATOR_LOAD_IN_PROGRESS librdkafka waits for seconds, so the first group would start late."""
    broker = Harness(with_topic=False)
    first = broker.start(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    assert first.done()
    elect_with_uncommitted_records(broker)
    request = FindCoordinatorRequest(coordinator_keys=keys)
    later = broker.start(request, 4)
    assert not later.done()
    broker.log.commit()
    broker.loop.run_ready()
    assert [row.error_code for row in later.result().coordinators] == [ErrorCode.NONE] * len(keys)
    assert broker.shard()  # loaded
    assert broker.call(request, 4) == later.result()
    broker.close()


def test_a_partition_that_takes_long_to_load_does_not_delay_the_response_longer(group_broker: Harness) -> None:
    elect_with_uncommitted_records(group_broker)
    response = group_broker.start(FindCoordinatorRequest(key="g"), 2)
    group_broker.loop.pass_ms(int(MAX_LOAD_WAIT_S * 1000))
    assert response.result().node_id == NODE


def test_an_internal_topic_that_cannot_be_created_is_an_error_to_retry() -> None:
    broker = Harness(with_topic=False)
    broker.controller.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Coordination failed.")
    assert find(broker, 4)[::4] == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "Coordination failed.")
    broker.close()


def test_a_coordinator_that_is_down_is_not_available(group_broker: Harness) -> None:
    group_broker.lose_group()
    assert find(group_broker, 4)[:4] == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)


@broker_test(transaction_state_log_num_partitions=50)
@pytest.mark.parametrize("version", range(1, 7))
async def test_the_coordinator_of_a_transactional_id(m: Machine, version: int) -> None:
    """The first request creates __transaction_state, and the id can be used at once."""
    producer = Producer(await m.client())
    assert await producer.find(version) == m.broker.config.node_id
    topic = m.broker.services.metadata.topics["__transaction_state"]
    assert (topic.internal, len(topic.partitions)) == (True, 50)
    assert topic.configs == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }
    assert await producer.init() == 0
