"""Produce with a transactional id: partitions that are added or asked about before their first batch."""

import asyncio

import pytest

from kbroker.coordinator.transaction.transaction_state import TransactionState
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import ProduceResponse
from tests.unit.support.client import batch
from tests.unit.support.simulated_broker import Machine, story
from tests.unit.support.transactional_producer import Producer, producer

OLD = range(3, 12)
NEW = (12, 13)


def code_before(version: int) -> ErrorCode:
    """What is told of a partition that was not added."""
    return ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE


@story
@pytest.mark.parametrize("version", NEW)
async def test_version_2_adds_the_partitions_itself(m: Machine, version: int) -> None:
    one = await producer(m)
    topics = {"a": {2: one.batch(b"x"), 0: one.batch(b"y", b"z")}, "b": {0: one.batch(b"w")}}
    answers = await one.send_all(topics, version=version)
    assert [[part.error_code for part in parts] for parts in answers] == [[0, 0], [0]]
    described = await one.describe()
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [0, 2]), ("b", [0])]
    assert await one.client.read("a") == [b"y", b"z"]
    assert await one.client.read("b") == [b"w"]
    # The next ones need nothing of the coordinator.
    m.broker.services.transactions.add_partitions = None  # type: ignore[assignment, method-assign]
    answers = await one.send_all({"b": {0: one.batch(b"v", sequence=1)}}, version=version)
    assert answers[0][0].error_code == 0


@story
@pytest.mark.parametrize("version", OLD)
async def test_older_clients_have_to_add_them_before(m: Machine, version: int) -> None:
    one = await producer(m, v2=False)
    await one.add({"a": [0]})
    topics = {"a": {0: one.batch(b"x"), 1: one.batch(b"y")}}
    ((first, second),) = await one.send_all(topics, version=version)
    assert (first.error_code, second.error_code) == (0, code_before(version))
    message = "Partition was not added to the transaction" if 8 <= version < 11 else None
    assert second.error_message == message
    assert await one.client.read("a", 0, 1) == []


@story(transaction_partition_verification_enable=False)
async def test_asking_can_be_switched_off(m: Machine) -> None:
    one = await producer(m, v2=False)
    assert (await one.send("a", b"x")).error_code == 0
    await one.client.alter_broker(transaction_partition_verification_enable=True)
    assert (await one.send("b", b"x")).error_code == ErrorCode.TRANSACTION_ABORTABLE


@story
@pytest.mark.parametrize("version", [*OLD, *NEW])
async def test_transactional_batches_need_a_transactional_id(m: Machine, version: int) -> None:
    """The whole request is refused."""
    one = await producer(m)
    topics = {"b": {0: batch(b"plain")}, "a": {1: one.batch(b"x")}}
    answers = await one.send_all(topics, version=version, name_it=False)
    refused = int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert [[part.error_code for part in parts] for parts in answers] == [[refused], [refused]]
    answers = await one.send_all({"a": {1: one.batch(b"x")}}, version=version, name_it=False)
    assert answers[0][0].error_code == refused
    assert await one.client.read("b") == []


@story
@pytest.mark.parametrize("version", NEW)
async def test_who_is_refused(m: Machine, version: int) -> None:
    one = await producer(m)
    for offset, code in ((-1, ErrorCode.INVALID_PRODUCER_EPOCH), (1, ErrorCode.INVALID_PRODUCER_EPOCH)):
        other = Producer(one.client, "t", True, one.producer_id, one.epoch + offset)
        assert (await other.send("a", b"x", version=version)).error_code == code
    other = Producer(one.client, "t", True, one.producer_id + 1, one.epoch)
    assert (await other.send("a", b"x", version=version)).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    other = Producer(one.client, "", True, one.producer_id, one.epoch)
    assert (await other.send("a", b"x", version=version)).error_code == ErrorCode.INVALID_REQUEST
    assert (await one.describe()).transaction_state == "Empty"


@story
async def test_two_producers_in_one_request(m: Machine) -> None:
    one, other = await producer(m), await producer(m, "other")
    answers = await one.send_all({"a": {0: one.batch(b"x"), 1: other.batch(b"y")}}, version=12)
    mapping = int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert [part.error_code for part in answers[0]] == [mapping, mapping]


@story
async def test_ordinary_batches_beside_them(m: Machine) -> None:
    """A batch that is not transactional adds nothing; one of a producer whose transaction is open is refused."""
    one = await producer(m)
    answers = await one.send_all({"a": {0: one.batch(b"x"), 1: batch(b"plain")}}, version=12)
    assert [part.error_code for part in answers[0]] == [0, 0]
    assert [(topic.topic, topic.partitions) for topic in (await one.describe()).topics] == [("a", [0])]
    outside = one.batch(b"y", sequence=1, transactional=False)
    for name_it in (True, False):
        answers = await one.send_all({"a": {0: outside}}, version=12, name_it=name_it)
        assert answers[0][0].error_code == ErrorCode.INVALID_TXN_STATE
        # The log has refused it, and tells where it begins; what the coordinator refuses tells nothing, as in Kafka.
        assert answers[0][0].log_start_offset == 0
    one.epoch += 1
    refused = await one.send("a", b"z")
    assert (refused.error_code, refused.log_start_offset) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


@story
async def test_what_cannot_be_written_is_not_added(m: Machine) -> None:
    one = await producer(m)
    topics = {"a": {0: one.batch(b"x"), 7: one.batch(b"y")}, "__transaction_state": {0: one.batch(b"z")}}
    answers = await one.send_all(topics, version=12)
    assert [[part.error_code for part in parts] for parts in answers] == [
        [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.INVALID_TOPIC_EXCEPTION],
    ]
    assert [(topic.topic, topic.partitions) for topic in (await one.describe()).topics] == [("a", [0])]


@story
async def test_requests_behind_one_another_keep_their_order_and_their_bytes(m: Machine) -> None:
    """The first waits for the coordinator while the others lie in the connection's buffer."""
    one = await producer(m)
    asked = []
    for number in range(50):
        request = one.client.produce_request("a", {0: one.batch(b"%04d" % number * 500, sequence=number)})
        request.transactional_id = "t"
        asked.append(one.client.send(request, 12, ProduceResponse))
    answers = [await one for one in asked]
    assert [answer.responses[0].partition_responses[0].base_offset for answer in answers] == list(range(50))
    assert await one.client.read("a") == [b"%04d" % number * 500 for number in range(50)]


# While the transaction before is being completed.


async def stuck(m: Machine, one: Producer) -> None:
    """One transaction that is prepared; its markers do not come through."""
    services = m.broker.services
    services.replicas.append_marker = lambda tp, marker, done: None  # type: ignore[method-assign]
    assert (await one.send("a", b"x")).error_code == 0
    assert await one.commit() == 0
    assert (await one.describe()).transaction_state == TransactionState.PREPARE_COMMIT.state_name


@story
async def test_version_2_waits_a_little_for_the_one_before(m: Machine) -> None:
    one = await producer(m)
    await stuck(m, one)
    began_ms = m.elapsed_ms
    answer = await one.send("a", b"y")
    assert (answer.error_code, answer.error_message) == (ErrorCode.CONCURRENT_TRANSACTIONS, None)
    assert 100 <= m.elapsed_ms - began_ms < 130


@story
async def test_the_wait_is_over_when_the_one_before_is(m: Machine) -> None:
    one = await producer(m)
    replicas = m.broker.services.replicas
    write = replicas.append_marker
    late = 0.05
    replicas.append_marker = lambda *marker: m.loop.call_later(late, write, *marker) and None  # type: ignore
    assert (await one.send("a", b"x")).error_code == 0
    assert await one.commit() == 0
    began_ms = m.elapsed_ms
    assert (await one.send("a", b"y")).error_code == 0
    assert m.elapsed_ms - began_ms < 80


@story(add_partitions_to_txn_retry_backoff_max_ms=0)
async def test_the_wait_can_be_switched_off(m: Machine) -> None:
    one = await producer(m)
    await stuck(m, one)
    began_ms = m.elapsed_ms
    assert (await one.send("b", b"y")).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert m.elapsed_ms - began_ms < 10


@story
@pytest.mark.parametrize("version", OLD)
async def test_older_clients_are_told_to_try_again(m: Machine, version: int) -> None:
    one = await producer(m)
    await stuck(m, one)
    topics = {"a": {1: one.batch(b"y")}}
    ((answer,),) = await one.send_all(topics, version=version)
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    if version >= 8:
        assert answer.error_message == (
            "Unable to verify the partition has been added to the transaction. "
            "Underlying error: CONCURRENT_TRANSACTIONS"
        )


@story
@pytest.mark.parametrize("version", [11, 12])
async def test_a_coordinator_that_is_not_here_yet(m: Machine, version: int) -> None:
    one = await producer(m)
    await m.broker.services.transactions.stop()
    ((answer,),) = await one.send_all({"a": {1: one.batch(b"y")}}, version=version)
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS


@story
async def test_who_goes_while_waiting_leaves_nothing_behind(m: Machine) -> None:
    one = await producer(m)
    await stuck(m, one)
    request = one.client.produce_request("b", {0: one.batch(b"y")})
    request.transactional_id = "t"
    asked = one.client.send(request, 12, ProduceResponse)
    await asyncio.sleep(0.03)
    one.client.close()
    with pytest.raises(ConnectionResetError):
        await asked
    await asyncio.sleep(1)
    assert m.partition("b").log.log_end_offset == 0


# Across restarts.


@story
@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_an_open_transaction_goes_on_after_a_restart(m: Machine, how: str) -> None:
    one = await producer(m)
    assert (await one.send("a", b"x")).error_code == 0
    if how == "stop":
        await m.restart()
    else:
        await m.crash()
        await m.start()
    again = await m.client()
    one.client, again.ids = again, one.client.ids
    await one.find()
    while (sent := await one.send("a", b"y")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS:
        await asyncio.sleep(0.01)
    assert (sent.error_code, sent.base_offset) == (0, 1)
    assert m.partition("a").last_stable_offset == 0
    while (ended := await one.commit()) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        await asyncio.sleep(0.01)
    assert ended == 0
    assert await one.wait_until_completed() == "CompleteCommit"
    assert m.partition("a").last_stable_offset == 3


@story
async def test_what_was_decided_before_a_crash_is_done_after_it(m: Machine) -> None:
    one = await producer(m)
    await stuck(m, one)
    await m.crash()
    await m.start()
    await m.until(lambda: m.partition("a").last_stable_offset == 2)
    again = await m.client()
    one.client, again.ids = again, one.client.ids
    assert await one.wait_until_completed() == "CompleteCommit"
    assert (await one.send("a", b"y")).error_code == 0
