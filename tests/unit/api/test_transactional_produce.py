"""Produce with a transactional id: partitions are added or verified before their first batch."""

import asyncio

import pytest

from kbroker.coordinator.transaction.transaction_metadata import TransactionState
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import ProduceResponse
from tests.unit.support.client import batch
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import Producer, init_producer

# Versions of Produce that use transactions version 1 and version 2.
V1_VERSIONS = range(3, 12)
V2_VERSIONS = (12, 13)


def not_added_error(version: int) -> ErrorCode:
    """Return the error code for a partition that was not added to the transaction."""
    return ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE


@broker_test
@pytest.mark.parametrize("version", V2_VERSIONS)
async def test_transactions_version_2_adds_the_partitions(m: Machine, version: int) -> None:
    owner = await init_producer(m)
    topics = {"a": {2: owner.batch(b"x"), 0: owner.batch(b"y", b"z")}, "b": {0: owner.batch(b"w")}}
    responses = await owner.send_all(topics, version=version)
    assert [[part.error_code for part in parts] for parts in responses] == [[0, 0], [0]]
    described = await owner.describe()
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [0, 2]), ("b", [0])]
    assert await owner.client.read("a") == [b"y", b"z"]
    assert await owner.client.read("b") == [b"w"]
    # For the next batches the coordinator is not called.
    m.broker.services.transactions.add_partitions = None  # type: ignore[assignment, method-assign]
    responses = await owner.send_all({"b": {0: owner.batch(b"v", sequence=1)}}, version=version)
    assert responses[0][0].error_code == 0


@broker_test
@pytest.mark.parametrize("version", V1_VERSIONS)
async def test_older_clients_have_to_add_partitions_first(m: Machine, version: int) -> None:
    owner = await init_producer(m, v2=False)
    await owner.add({"a": [0]})
    topics = {"a": {0: owner.batch(b"x"), 1: owner.batch(b"y")}}
    ((first, second),) = await owner.send_all(topics, version=version)
    assert (first.error_code, second.error_code) == (0, not_added_error(version))
    message = "Partition was not added to the transaction" if 8 <= version < 11 else None
    assert second.error_message == message
    assert await owner.client.read("a", 0, 1) == []


@broker_test(transaction_partition_verification_enable=False)
async def test_verification_can_be_disabled(m: Machine) -> None:
    owner = await init_producer(m, v2=False)
    assert (await owner.send("a", b"x")).error_code == 0
    await owner.client.alter_broker(transaction_partition_verification_enable=True)
    assert (await owner.send("b", b"x")).error_code == ErrorCode.TRANSACTION_ABORTABLE


@broker_test
@pytest.mark.parametrize("version", [*V1_VERSIONS, *V2_VERSIONS])
async def test_transactional_batches_need_a_transactional_id(m: Machine, version: int) -> None:
    """All partitions of the request are refused."""
    owner = await init_producer(m)
    topics = {"b": {0: batch(b"plain")}, "a": {1: owner.batch(b"x")}}
    responses = await owner.send_all(topics, version=version, name_it=False)
    refused = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert [[part.error_code for part in parts] for parts in responses] == [[refused], [refused]]
    responses = await owner.send_all({"a": {1: owner.batch(b"x")}}, version=version, name_it=False)
    assert responses[0][0].error_code == refused
    assert await owner.client.read("b") == []


@broker_test
@pytest.mark.parametrize("version", V2_VERSIONS)
async def test_rejected_producers(m: Machine, version: int) -> None:
    owner = await init_producer(m)
    for offset, code in ((-1, ErrorCode.INVALID_PRODUCER_EPOCH), (1, ErrorCode.INVALID_PRODUCER_EPOCH)):
        other = Producer(owner.client, "t", True, owner.producer_id, owner.epoch + offset)
        assert (await other.send("a", b"x", version=version)).error_code == code
    other = Producer(owner.client, "t", True, owner.producer_id + 1, owner.epoch)
    assert (await other.send("a", b"x", version=version)).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    other = Producer(owner.client, "", True, owner.producer_id, owner.epoch)
    assert (await other.send("a", b"x", version=version)).error_code == ErrorCode.INVALID_REQUEST
    assert (await owner.describe()).transaction_state == "Empty"


@broker_test
async def test_two_producers_in_one_request(m: Machine) -> None:
    owner, other = await init_producer(m), await init_producer(m, "other")
    responses = await owner.send_all({"a": {0: owner.batch(b"x"), 1: other.batch(b"y")}}, version=12)
    mapping = int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert [part.error_code for part in responses[0]] == [mapping, mapping]


@broker_test
async def test_non_transactional_batches_in_a_transactional_request(m: Machine) -> None:
    """Their partitions are not added. They are refused if their producer has an open transaction."""
    owner = await init_producer(m)
    responses = await owner.send_all({"a": {0: owner.batch(b"x"), 1: batch(b"plain")}}, version=12)
    assert [part.error_code for part in responses[0]] == [0, 0]
    assert [(topic.topic, topic.partitions) for topic in (await owner.describe()).topics] == [("a", [0])]
    outside = owner.batch(b"y", sequence=1, transactional=False)
    for name_it in (True, False):
        responses = await owner.send_all({"a": {0: outside}}, version=12, name_it=name_it)
        assert responses[0][0].error_code == ErrorCode.INVALID_TXN_STATE
        # An error of the log comes with the log start offset, an error of the coordinator without, as in Kafka.
        assert responses[0][0].log_start_offset == 0
    owner.epoch += 1
    refused = await owner.send("a", b"z")
    assert (refused.error_code, refused.log_start_offset) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


@broker_test
async def test_partitions_that_cannot_be_appended_to_are_not_added(m: Machine) -> None:
    owner = await init_producer(m)
    topics = {"a": {0: owner.batch(b"x"), 7: owner.batch(b"y")}, "__transaction_state": {0: owner.batch(b"z")}}
    responses = await owner.send_all(topics, version=12)
    assert [[part.error_code for part in parts] for parts in responses] == [
        [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.INVALID_TOPIC_EXCEPTION],
    ]
    assert [(topic.topic, topic.partitions) for topic in (await owner.describe()).topics] == [("a", [0])]


@broker_test
async def test_pipelined_requests_keep_their_order_and_their_bytes(m: Machine) -> None:
    """The first waits for the coordinator while the others are in the connection's buffer."""
    owner = await init_producer(m)
    responses = []
    for number in range(50):
        request = owner.client.produce_request("a", {0: owner.batch(b"%04d" % number * 500, sequence=number)})
        request.transactional_id = "t"
        responses.append(owner.client.send(request, 12, ProduceResponse))
    offsets = [(await response).responses[0].partition_responses[0].base_offset for response in responses]
    assert offsets == list(range(50))
    assert await owner.client.read("a") == [b"%04d" % number * 500 for number in range(50)]


# While the previous transaction is being completed.


async def commit_without_markers(m: Machine, owner: Producer) -> None:
    """Commit a transaction whose markers are not written: it remains prepared."""
    services = m.broker.services
    services.replicas.append_marker = lambda tp, marker, done: None  # type: ignore[method-assign]
    assert (await owner.send("a", b"x")).error_code == 0
    assert await owner.commit() == 0
    assert (await owner.describe()).transaction_state == TransactionState.PREPARE_COMMIT.state_name


@broker_test
async def test_transactions_version_2_waits_briefly_for_the_previous_transaction(m: Machine) -> None:
    owner = await init_producer(m)
    await commit_without_markers(m, owner)
    began_ms = m.elapsed_ms
    response = await owner.send("a", b"y")
    assert (response.error_code, response.error_message) == (ErrorCode.CONCURRENT_TRANSACTIONS, None)
    assert 100 <= m.elapsed_ms - began_ms < 130


@broker_test
async def test_the_wait_ends_when_the_previous_transaction_is_completed(m: Machine) -> None:
    owner = await init_producer(m)
    replicas = m.broker.services.replicas
    write = replicas.append_marker
    delay_s = 0.05
    replicas.append_marker = lambda *marker: m.loop.call_later(delay_s, write, *marker) and None  # type: ignore
    assert (await owner.send("a", b"x")).error_code == 0
    assert await owner.commit() == 0
    began_ms = m.elapsed_ms
    assert (await owner.send("a", b"y")).error_code == 0
    assert m.elapsed_ms - began_ms < 80


@broker_test(add_partitions_to_txn_retry_backoff_max_ms=0)
async def test_the_wait_can_be_disabled(m: Machine) -> None:
    owner = await init_producer(m)
    await commit_without_markers(m, owner)
    began_ms = m.elapsed_ms
    assert (await owner.send("b", b"y")).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert m.elapsed_ms - began_ms < 10


@broker_test
@pytest.mark.parametrize("version", V1_VERSIONS)
async def test_older_clients_get_a_retriable_error(m: Machine, version: int) -> None:
    owner = await init_producer(m)
    await commit_without_markers(m, owner)
    topics = {"a": {1: owner.batch(b"y")}}
    ((response,),) = await owner.send_all(topics, version=version)
    assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    if version >= 8:
        assert response.error_message == (
            "Unable to verify the partition has been added to the transaction. "
            "Underlying error: CONCURRENT_TRANSACTIONS"
        )


@broker_test
@pytest.mark.parametrize("version", [11, 12])
async def test_a_coordinator_that_is_not_available(m: Machine, version: int) -> None:
    owner = await init_producer(m)
    await m.broker.services.transactions.stop()
    ((response,),) = await owner.send_all({"a": {1: owner.batch(b"y")}}, version=version)
    assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS


@broker_test
async def test_nothing_is_appended_for_a_client_that_disconnects_while_it_waits(m: Machine) -> None:
    owner = await init_producer(m)
    await commit_without_markers(m, owner)
    request = owner.client.produce_request("b", {0: owner.batch(b"y")})
    request.transactional_id = "t"
    response = owner.client.send(request, 12, ProduceResponse)
    await asyncio.sleep(0.03)
    owner.client.close()
    with pytest.raises(ConnectionResetError):
        await response
    await asyncio.sleep(1)
    assert m.partition("b").log.log_end_offset == 0


# Across restarts.


@broker_test
@pytest.mark.parametrize("stop", ["stop", "crash"])
async def test_an_open_transaction_continues_after_a_restart(m: Machine, stop: str) -> None:
    owner = await init_producer(m)
    assert (await owner.send("a", b"x")).error_code == 0
    if stop == "stop":
        await m.restart()
    else:
        await m.crash()
        await m.start()
    client = await m.client()
    owner.client, client.ids = client, owner.client.ids
    await owner.find()
    while (sent := await owner.send("a", b"y")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS:
        await asyncio.sleep(0.01)
    assert (sent.error_code, sent.base_offset) == (0, 1)
    assert m.partition("a").last_stable_offset == 0
    while (ended := await owner.commit()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await asyncio.sleep(0.01)
    assert ended == 0
    assert await owner.wait_until_completed() == "CompleteCommit"
    assert m.partition("a").last_stable_offset == 3


@broker_test
async def test_a_transaction_that_was_prepared_before_a_crash_is_completed_after_it(m: Machine) -> None:
    owner = await init_producer(m)
    await commit_without_markers(m, owner)
    await m.crash()
    await m.start()
    await m.until(lambda: m.partition("a").last_stable_offset == 2)
    client = await m.client()
    owner.client, client.ids = client, owner.client.ids
    assert await owner.wait_until_completed() == "CompleteCommit"
    assert (await owner.send("a", b"y")).error_code == 0
