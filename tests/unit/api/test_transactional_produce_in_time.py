"""Produce with a transactional id, and the moment: what comes in the same turn of the loop, or a few later."""

import asyncio
from typing import TypeVar

import pytest

from kbroker.server.connection import Connection
from protocol.messages.k00_produce import ProduceRequest, ProduceResponse
from protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from protocol.schema.message import Message
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, story
from tests.unit.support.transactional_producer import Producer, producer

M = TypeVar("M", bound=Message)


def arrives(
    connection: Connection, client: Client, request: Message, version: int, response_class: type[M]
) -> asyncio.Future[M]:
    """The broker receives a request now, in this iteration of the event loop."""
    frame, response = client.prepare(request, version, response_class)
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))
    return response


def record(owner: Producer, partition: int, value: bytes) -> ProduceRequest:
    request = owner.client.produce_request("a", {partition: owner.batch(value)})
    request.transactional_id = owner.transactional_id
    return request


def code(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


@story
async def test_what_others_send_in_the_same_turn_changes_no_batch(m: Machine) -> None:
    """All connections receive in the same buffer, and what it holds waits for the coordinator."""
    owners = [await producer(m, f"tx-{index}") for index in range(3)]
    connections = list(m.broker._server.connections)
    answers = [
        arrives(connection, owner.client, record(owner, index, b"%d" % index * 1000), 12, ProduceResponse)
        for index, (owner, connection) in enumerate(zip(owners, connections, strict=True))
    ]
    assert [code(answer) for answer in await asyncio.gather(*answers)] == [0, 0, 0]
    for index, owner in enumerate(owners):
        assert await owner.client.read("a", 0, index) == [b"%d" % index * 1000]


@story
@pytest.mark.parametrize("turns", range(12))
async def test_the_next_may_begin_while_the_one_before_is_completed(m: Machine, turns: int) -> None:
    """`turns` of the loop after its end: a marker that comes meanwhile is not of the transaction that is asked for."""
    owner = await producer(m)
    client = owner.client
    (connection,) = m.broker._server.connections
    assert (await owner.send("a", b"first")).error_code == 0
    end = EndTxnRequest(transactional_id="t", producer_id=owner.producer_id, producer_epoch=owner.epoch, committed=True)
    ended = arrives(connection, client, end, 5, EndTxnResponse)
    for _ in range(turns):
        await asyncio.sleep(0)
    owner.epoch += 1
    produced = await arrives(connection, client, record(owner, 0, b"second"), 12, ProduceResponse)
    assert (ended.result().error_code, ended.result().producer_epoch) == (0, owner.epoch)
    assert code(produced) == 0
