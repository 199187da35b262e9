"""Produce and TxnOffsetCommit whose transaction coordinator is on another broker.

The other broker is the same one, under another id: requests to it are encoded, handled and decoded as on the wire.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k22_transactions import AddPartitionsToTxnRequest
from tests.unit.support.handlers import respond
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import init_producer

OTHER_ID = 99


class RemoteCoordinator:
    """The coordinator of the machine as a peer. `fault` is called with each request, and may raise."""

    def __init__(self, m: Machine) -> None:
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.fault: Callable[[], None] = lambda: None
        self._services = m.broker.services
        manager: Any = self._services.add_partitions_to_txn
        manager._node_id, manager._peers = OTHER_ID, self

    async def request(self, broker_id: int, request: Any, version: int, *, timeout_ms: int) -> Any:
        await asyncio.sleep(0.001)
        self.requests.append(request)
        self.fault()
        return await respond(self._services, request, version)


def unreachable() -> None:
    raise KafkaError(ErrorCode.NETWORK_EXCEPTION)


@broker_test
@pytest.mark.parametrize("version", [12, 13])
async def test_partitions_are_added_on_the_coordinators_broker(m: Machine, version: int) -> None:
    owner = await init_producer(m)
    remote = RemoteCoordinator(m)
    topics = {"a": {2: owner.batch(b"x"), 0: owner.batch(b"y", b"z")}, "b": {0: owner.batch(b"w")}}
    responses = await owner.send_all(topics, version=version)
    assert [[part.error_code for part in parts] for parts in responses] == [[0, 0], [0]]
    assert [row.verify_only for request in remote.requests for row in request.transactions] == [False]
    described = await owner.describe()
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [0, 2]), ("b", [0])]
    assert await owner.client.read("a") == [b"y", b"z"]


@broker_test
@pytest.mark.parametrize("version", [3, 10, 11])
async def test_partitions_of_older_clients_are_verified_on_the_coordinators_broker(m: Machine, version: int) -> None:
    owner = await init_producer(m, v2=False)
    remote = RemoteCoordinator(m)
    await owner.add({"a": [0]})
    topics = {"a": {0: owner.batch(b"x"), 1: owner.batch(b"y")}}
    ((first, second),) = await owner.send_all(topics, version=version)
    refused = ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE
    assert (first.error_code, second.error_code) == (0, refused)
    assert [row.verify_only for request in remote.requests for row in request.transactions] == [True]
    assert await owner.client.read("a") == [b"x"]
    assert await owner.client.read("a", 0, 1) == []
    # Once the transaction is open in a partition, the coordinator is not needed.
    remote.fault = unreachable
    ((result,),) = await owner.send_all({"a": {0: owner.batch(b"z", sequence=1)}}, version=version)
    assert result.error_code == 0


@broker_test
@pytest.mark.parametrize("version", [11, 12])
async def test_while_the_coordinator_is_unreachable_clients_retry(m: Machine, version: int) -> None:
    owner = await init_producer(m, v2=version >= 12)
    remote = RemoteCoordinator(m)
    if version < 12:
        await owner.add({"a": [0]})
    remote.fault = unreachable
    ((result,),) = await owner.send_all({"a": {0: owner.batch(b"x")}}, version=version)
    assert result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert result.error_message.endswith("NETWORK_EXCEPTION")
    remote.fault = lambda: None
    ((result,),) = await owner.send_all({"a": {0: owner.batch(b"x")}}, version=version)
    assert result.error_code == 0
    assert await owner.client.read("a") == [b"x"]


@broker_test
async def test_a_partition_that_the_coordinator_does_not_know_yet_can_be_retried(m: Machine) -> None:
    """The metadata of the coordinator's broker may be older than that of the partition's leader."""
    owner = await init_producer(m)
    remote = RemoteCoordinator(m)
    metadata: Any = SimpleNamespace(partition=lambda topic, index: None if topic == "b" else object(), topics={})
    known, remote._services = (
        remote._services,
        SimpleNamespace(metadata=metadata, environment=m.broker.environment, authorizer=None),
    )  # type: ignore[assignment]
    topics = {"a": {0: owner.batch(b"x")}, "b": {0: owner.batch(b"y")}}
    ((first,), (second,)) = await owner.send_all(topics, version=12)
    expected = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert (first.error_code, second.error_code) == expected
    remote._services = known
    responses = await owner.send_all(topics, version=12)
    assert [[part.error_code for part in parts] for parts in responses] == [[0], [0]]
