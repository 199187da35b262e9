"""AddPartitionsToTxn: from clients for one transaction, from brokers for several; all partitions or none."""

from typing import Any

import pytest

from kbroker.common import TopicPartition
from protocol.errors import ErrorCode
from protocol.messages.k22_transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from protocol.records.batch import parse_header
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import codes, init_producer
from tests.unit.support.views import create

NONE, UNKNOWN, NOT_ATTEMPTED = 0, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.OPERATION_NOT_ATTEMPTED)


@broker_test
@pytest.mark.parametrize("version", range(4))
async def test_a_client_adds_partitions(m: Machine, version: int) -> None:
    producer = await init_producer(m, v2=False)
    assert codes(await producer.add({"a": [2, 0], "b": [0]}, version)) == {"a": {2: NONE, 0: NONE}, "b": {0: NONE}}
    assert codes(await producer.add({"a": [0]}, version)) == {"a": {0: NONE}}
    described = await producer.describe()
    assert described.transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [0, 2]), ("b", [0])]


@broker_test
async def test_a_view_is_not_a_topic_for_a_transaction(m: Machine) -> None:
    """Clients must not retry, and the error is that of Produce."""
    producer = await init_producer(m, v2=False)
    configs = {"kbroker.view.of": "a"}
    assert (await create(producer.client, "view", configs)) == (0, "")
    expected = {"view": {0: int(ErrorCode.INVALID_TOPIC_EXCEPTION)}}
    assert codes(await producer.add({"view": [0]}, 3)) == expected


@broker_test
@pytest.mark.parametrize("version", range(4))
async def test_all_partitions_are_added_or_none(m: Machine, version: int) -> None:
    producer = await init_producer(m, v2=False)
    partitions = {"a": [0, 3], "nope": [0], "__transaction_state": [0]}
    assert codes(await producer.add(partitions, version)) == {
        "a": {0: NOT_ATTEMPTED, 3: UNKNOWN},
        "nope": {0: UNKNOWN},
        "__transaction_state": {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED},
    }
    assert (await producer.describe()).transaction_state == "Empty"


@broker_test
async def test_no_partitions_have_no_results(m: Machine) -> None:
    producer = await init_producer(m, v2=False)
    assert await producer.add({}) == []
    assert codes(await producer.add({"a": []})) == {"a": {}}


@broker_test
@pytest.mark.parametrize("version", range(4))
async def test_the_error_of_a_fenced_producer_depends_on_the_version(m: Machine, version: int) -> None:
    producer = await init_producer(m, v2=False)
    producer.epoch -= 1
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert codes(await producer.add({"a": [0]}, version)) == {"a": {0: code}}


@broker_test
async def test_unknown_producers_are_rejected(m: Machine) -> None:
    producer = await init_producer(m, v2=False)
    producer.producer_id += 1
    assert codes(await producer.add({"a": [0]})) == {"a": {0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}}
    producer.transactional_id = "nobody"
    assert codes(await producer.add({"a": [0]})) == {"a": {0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}}
    producer.transactional_id = ""
    assert codes(await producer.add({"a": [0]})) == {"a": {0: ErrorCode.INVALID_REQUEST}}


@broker_test
@pytest.mark.parametrize("version", [4, 5])
async def test_brokers_add_and_verify_several_transactions(m: Machine, version: int) -> None:
    producer, other, third = [await init_producer(m, name) for name in ("one", "other", "third")]
    third.transactional_id = "nobody"
    request = AddPartitionsToTxnRequest(
        transactions=[
            producer.transaction({"a": [0, 1]}),
            producer.transaction({"a": [0, 2], "b": [0]}, verify_only=True),
            other.transaction({"a": [0], "b": [7]}),
            other.transaction({"a": [1]}, verify_only=True),
            third.transaction({"b": [0]}),
        ]
    )
    response = await producer.client.request(request, version, AddPartitionsToTxnResponse)
    assert response.error_code == 0
    missing = int(ErrorCode.TRANSACTION_ABORTABLE)
    assert [(row.transactional_id, codes(row.topic_results)) for row in response.results_by_transaction] == [
        ("one", {"a": {0: NONE, 1: NONE}}),
        ("one", {"a": {0: NONE, 2: missing}, "b": {0: missing}}),
        ("other", {"a": {0: NOT_ATTEMPTED}, "b": {7: UNKNOWN}}),
        ("other", {"a": {1: missing}}),
        ("nobody", {"b": {0: int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)}}),
    ]


@broker_test
@pytest.mark.parametrize("version", [4, 5])
async def test_a_request_without_transactions_has_an_empty_response(m: Machine, version: int) -> None:
    client = await m.client()
    response = await client.request(AddPartitionsToTxnRequest(), version, AddPartitionsToTxnResponse)
    assert (response.error_code, response.results_by_transaction) == (0, [])


@broker_test(transaction_state_log_num_partitions=1)
async def test_the_transactions_of_a_request_are_written_together(m: Machine) -> None:
    """A broker sends the transactions of all its producers in one request, which must not wait for each in turn."""
    producers = [await init_producer(m, f"t-{number}") for number in range(3)]
    replicas = m.broker.services.replicas
    append_internal, appended = replicas.append_internal, []

    def count(tp: TopicPartition, batch: bytearray, **options: Any) -> int:
        appended.append(parse_header(batch).count)
        return append_internal(tp, batch, **options)

    replicas.append_internal = count  # type: ignore[method-assign]
    request = AddPartitionsToTxnRequest(transactions=[producer.transaction({"a": [0]}) for producer in producers])
    response = await producers[0].client.request(request, 5, AddPartitionsToTxnResponse)
    results = {row.transactional_id: codes(row.topic_results) for row in response.results_by_transaction}
    assert results == {f"t-{number}": {"a": {0: NONE}} for number in range(3)}
    assert appended == [3]
