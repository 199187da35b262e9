"""Transactional Produce requests that arrive in the same iteration of the event loop, or a few iterations later."""

import asyncio
from typing import TypeVar

import pytest

from kbroker.server.connection import Connection
from protocol.messages.k00_produce import ProduceRequest, ProduceResponse
from protocol.messages.k22_transactions import EndTxnRequest, EndTxnResponse
from protocol.schema.message import Message
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.transactional_producer import Producer, init_producer

M = TypeVar("M", bound=Message)


def receive(
    connection: Connection, client: Client, request: Message, version: int, response_class: type[M]
) -> asyncio.Future[M]:
    """Let the broker receive a request now, in this iteration of the event loop."""
    frame, response = client.prepare(request, version, response_class)
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))
    return response


def produce_request(owner: Producer, partition: int, value: bytes) -> ProduceRequest:
    request = owner.client.produce_request("a", {partition: owner.batch(value)})
    request.transactional_id = owner.transactional_id
    return request


def code(response: ProduceResponse) -> int:
    return response.responses[0].partition_responses[0].error_code


@broker_test
async def test_batches_of_one_iteration_keep_their_bytes(m: Machine) -> None:
    """All connections receive into the same buffer, while the requests in it wait for the coordinator."""
    owners = [await init_producer(m, f"tx-{index}") for index in range(3)]
    connections = list(m.broker._server.connections)
    responses = [
        receive(connection, owner.client, produce_request(owner, index, b"%d" % index * 1000), 12, ProduceResponse)
        for index, (owner, connection) in enumerate(zip(owners, connections, strict=True))
    ]
    assert [code(response) for response in await asyncio.gather(*responses)] == [0, 0, 0]
    for index, owner in enumerate(owners):
        assert await owner.client.read("a", 0, index) == [b"%d" % index * 1000]


@broker_test
@pytest.mark.parametrize("iterations", range(12))
async def test_a_transaction_may_begin_while_the_previous_one_is_completed(m: Machine, iterations: int) -> None:
    """Markers of the previous transaction do not end the next. `iterations` of the loop have passed since EndTxn."""
    owner = await init_producer(m)
    client = owner.client
    (connection,) = m.broker._server.connections
    assert (await owner.send("a", b"first")).error_code == 0
    end = EndTxnRequest(transactional_id="t", producer_id=owner.producer_id, producer_epoch=owner.epoch, committed=True)
    ended = receive(connection, client, end, 5, EndTxnResponse)
    for _ in range(iterations):
        await asyncio.sleep(0)
    owner.epoch += 1
    produced = await receive(connection, client, produce_request(owner, 0, b"second"), 12, ProduceResponse)
    assert (ended.result().error_code, ended.result().producer_epoch) == (0, owner.epoch)
    assert code(produced) == 0
