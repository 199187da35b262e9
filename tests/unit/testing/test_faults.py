"""Faults hit the requests that they name, and no others; requests are recorded with what they name."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kbroker.client.connection import BrokerConnection, BrokerUnreachable
from kbroker.client.requests import MAX_VERSIONS
from kbroker.testing import Broker
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k15_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.records.batch import build_batch


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka(broker: Broker) -> Iterator[Broker]:
    yield broker
    broker.request_log.clear()


@pytest.fixture
def app(kafka: Broker) -> Iterator[BrokerConnection]:
    """The connection of a program, as the broker sees it."""
    host, _, port = kafka.bootstrap.rpartition(":")
    with BrokerConnection((host, int(port)), client_id="app") as connection:
        yield connection


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def send(app: BrokerConnection, topic: str, value: bytes = b"v") -> int:
    data = PartitionProduceData(index=0, records=build_batch([(time.time_ns() // 1_000_000, None, value, ())]))
    rows = [TopicProduceData(name=topic, partition_data=[data])]
    response = app.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=rows), ProduceResponse)
    return response.responses[0].partition_responses[0].error_code


def fetch(app: BrokerConnection, topics: list[str], session: tuple[int, int] = (0, 0)) -> FetchResponse:
    rows = [
        FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)])
        for topic in topics
    ]
    request = FetchRequest(max_wait_ms=0, session_id=session[0], session_epoch=session[1], topics=rows)
    return app.request(request, FetchResponse)


def test_an_error_hits_the_topic_as_often_as_it_was_asked(kafka: Broker, app: BrokerConnection):
    topic, other = kafka.topic(), kafka.topic()
    with kafka.fault(api="Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", count=2) as fault:
        assert [send(app, topic) for _ in range(3)] == [6, 6, 0]
        assert send(app, other) == 0
    assert fault.hits == 2
    assert len(kafka.consume(topic)) == 1
    assert send(app, topic) == 0


def test_after_the_fact_the_record_is_stored_although_the_client_saw_an_error(kafka: Broker, app: BrokerConnection):
    topic = kafka.topic()
    with kafka.fault(api="Produce", error="REQUEST_TIMED_OUT", after=True):
        assert send(app, topic) == ErrorCode.REQUEST_TIMED_OUT
    assert [record.value for record in kafka.consume(topic)] == [b"v"]


@pytest.mark.parametrize("after", [False, True])
def test_a_dropped_connection_ends_without_a_response(kafka: Broker, app: BrokerConnection, after: bool):
    topic = kafka.topic()
    with kafka.fault(api="PRODUCE", drop=True, after=after) as fault, pytest.raises(BrokerUnreachable):
        send(app, topic)
    assert fault.hits == 1
    assert len(kafka.consume(topic)) == after


def test_a_delayed_response_waits_in_the_time_of_the_broker(kafka: Broker, app: BrokerConnection):
    topic = kafka.topic()
    codes: list[int] = []
    with kafka.fault(api="Produce", delay_ms=60_000) as fault:
        sender = threading.Thread(target=lambda: codes.append(send(app, topic)))
        sender.start()
        until(lambda: fault.hits == 1)
        # The record is there, the response is not.
        assert kafka.consume(topic, n=1)
        assert codes == []
        kafka.clock.advance(minutes=1)
        sender.join(10)
    assert codes == [0]


def test_a_fetch_in_a_session_belongs_to_the_topics_of_the_session(kafka: Broker, app: BrokerConnection):
    topic = kafka.topic()
    kafka.produce(topic, [b"v"])
    opened = fetch(app, [topic])
    with kafka.fault(api="Fetch", topic=topic, error="OFFSET_OUT_OF_RANGE") as fault:
        response = fetch(app, [], (opened.session_id, 1))
        assert [(row.topic, row.partitions[0].error_code) for row in response.responses] == [(topic, 1)]
    assert fault.hits == 1
    assert response.session_id == 0
    assert fetch(app, [topic]).responses[0].partitions[0].records


def test_metadata_of_a_topic_can_fail_while_the_brokers_are_known(kafka: Broker, app: BrokerConnection):
    topic, other = kafka.topic(), kafka.topic()
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic), MetadataRequestTopic(name=other)])
    with kafka.fault(api="Metadata", topic=topic, error="LEADER_NOT_AVAILABLE"):
        response = app.request(request, MetadataResponse)
    assert {row.name: row.error_code for row in response.topics} == {topic: 5, other: 0}
    assert len(response.brokers) == 1


def test_errors_have_the_place_that_the_api_has_for_them(kafka: Broker, app: BrokerConnection):
    with kafka.fault(api="FindCoordinator", error="COORDINATOR_NOT_AVAILABLE"):
        found = app.request(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse)
    assert [(row.key, row.error_code) for row in found.coordinators] == [("g", 15)]
    with kafka.fault(api="OffsetFetch", group="g", error="NOT_COORDINATOR"):
        rows = [OffsetFetchRequestGroup(group_id="g", topics=None)]
        offsets = app.request(OffsetFetchRequest(groups=rows), OffsetFetchResponse)
    assert [(row.group_id, row.error_code) for row in offsets.groups] == [("g", 16)]
    with kafka.fault(api="DescribeGroups", error="NOT_COORDINATOR"):
        groups = app.request(DescribeGroupsRequest(groups=["a", "b"]), DescribeGroupsResponse)
    assert [(row.group_id, row.error_code) for row in groups.groups] == [("a", 16), ("b", 16)]
    with kafka.fault(api="ListGroups", error="COORDINATOR_LOAD_IN_PROGRESS"):
        assert app.request(ListGroupsRequest(), ListGroupsResponse).error_code == 14


def test_requests_are_recorded_with_what_they_name_but_not_those_of_the_test(kafka: Broker, app: BrokerConnection):
    topic = kafka.topic()
    kafka.produce(topic, [b"v"])
    assert [request.api for request in kafka.requests()] == ["ApiVersions"]
    send(app, topic, b"12345")
    (request,) = kafka.requests("Produce", topic=topic)
    assert (request.client_id, request.version) == ("app", MAX_VERSIONS[ApiKey.PRODUCE])
    assert request.fields["acks"] == -1
    assert request.fields["topics"][0]["partitions"][0]["bytes"] > 5
    app.request(FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse)
    assert len(kafka.requests("FindCoordinator", group="g")) == 1
    assert kafka.requests("FindCoordinator", group="h") == kafka.requests(client_id="other") == []


def test_repeated_requests_are_all_recorded_although_brokers_cache_their_responses(
    kafka: Broker, app: BrokerConnection
):
    for _ in range(3):
        app.request(MetadataRequest(topics=[]), MetadataResponse)
    assert len(kafka.requests("Metadata")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"api": "Prodcue", "drop": True}, "there is no API 'Prodcue'"),
        ({"api": "Produce", "error": "NO_SUCH"}, "there is no error code 'NO_SUCH'"),
        ({"api": "Produce"}, "a fault needs error="),
    ],
)
def test_a_fault_that_could_hit_nothing_is_refused(kafka: Broker, arguments: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message), kafka.fault(**arguments):  # type: ignore[arg-type]
        pass
    assert kafka.request_log.faults == []


def test_requests_that_are_handled_in_turns_are_hit_too(kafka: Broker, app: BrokerConnection):
    keys = [f"group-{number:04}-{'x' * 50}" for number in range(1_000)]
    with kafka.fault(api="FindCoordinator", error="NOT_COORDINATOR", delay_ms=1, count=1):
        found = app.request(FindCoordinatorRequest(coordinator_keys=keys), FindCoordinatorResponse)
        assert {row.error_code for row in found.coordinators} == {ErrorCode.NOT_COORDINATOR}
        found = app.request(FindCoordinatorRequest(coordinator_keys=keys), FindCoordinatorResponse)
    assert {row.error_code for row in found.coordinators} == {0}
    assert [len(request.groups) for request in kafka.requests("FindCoordinator")] == [1_000, 1_000]
