"""Damaged frames on one connection of a broker on a simulated machine.

The connection gets responses or is closed. Only valid batches are stored, another connection is served as before, and
no handler raises an unexpected exception.
"""

import asyncio
import logging
from functools import partial
from random import Random
from typing import Any

from kbroker.simulation.runtime.loop import SimLoop
from kbroker.storage.log.log_reads import read_blocking
from protocol.apis import CLIENT_LISTENER_APIS
from protocol.framing import encode_request_header
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records.batch import crc_of, iter_headers
from protocol.schema.message import Message, message_info
from tests.unit.fuzz.check import Target
from tests.unit.fuzz.damage import Case, Spot
from tests.unit.fuzz.record_targets import random_batch
from tests.unit.fuzz.tracing_encoder import TracingEncoder
from tests.unit.support.client import Client, batch, values_of
from tests.unit.support.random_messages import all_messages, random_message
from tests.unit.support.simulated_broker import HOST, PORT, Machine

TOPIC = "t"
_REQUESTS = {message_info(cls).key: cls for cls in all_messages() if message_info(cls).kind == "request"}


def targets() -> list[Target]:
    # The memory of a broker; and decoders of a message are generated at its first use.
    constant = 16 << 20
    return [
        Target("broker.frame", _frame, (), constant=constant, memory_per_byte=100, seconds=2.0, weight=40),
        Target("broker.produce", _produce, (), constant=constant, memory_per_byte=100, seconds=2.0, weight=40),
        Target("broker.bytes", _bytes, (), constant=constant, memory_per_byte=100, seconds=2.0, weight=40),
    ]


# Requests.


def _framed(api_key: int, version: int, message: Message, rng: Random) -> tuple[bytes, list[Spot]]:
    header = encode_request_header(api_key, version, rng.getrandbits(31), rng.choice((None, "fuzz")))
    traced = TracingEncoder(message, version)
    size = len(header) + len(traced.data)
    start = 4 + len(header)
    spots = [Spot(0, 4, "i32"), Spot(4, 2, "i16"), Spot(6, 2, "i16"), Spot(12, 2, "i16")]
    spots += [spot._replace(pos=spot.pos + start) for spot in traced.spots]
    return size.to_bytes(4, "big") + header + bytes(traced.data), spots


def _frame(rng: Random) -> Case:
    api = rng.choice(list(CLIENT_LISTENER_APIS.values()))
    cls = _REQUESTS[api.key]
    version = rng.randint(message_info(cls).min_version, message_info(cls).max_version)
    data, spots = _framed(api.key, version, _use_topic(random_message(cls, version, rng), rng), rng)
    return Case(data, partial(_play, rng.getrandbits(32)), spots, _seal)


def _use_topic(message: Any, rng: Random) -> Any:
    """Use the existing topic in some of the names."""
    for value in (getattr(message, name) for name in type(message).__rows__):
        for item in value if isinstance(value, list) else ():
            if hasattr(item, "name") and isinstance(item.name, str) and rng.random() < 0.5:
                item.name = TOPIC
            if hasattr(item, "num_partitions"):
                item.num_partitions = min(item.num_partitions, 200)
    return message


def _produce(rng: Random) -> Case:
    parts = [PartitionProduceData(index=rng.choice((0, 0, 1)), records=random_batch(rng))]
    topic = TopicProduceData(name=TOPIC, partition_data=parts)
    version = rng.randint(3, 12)
    data, spots = _framed(0, version, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), rng)
    return Case(data, partial(_play, rng.getrandbits(32)), spots, _seal)


def _bytes(rng: Random) -> Case:
    data = b"".join(rng.randbytes(rng.choice((0, 1, 3, 4, 10, 100))) for _ in range(3))
    return Case(data, partial(_play, rng.getrandbits(32)), (Spot(0, 4, "i32"),))


def _seal(data: bytearray) -> None:
    """Correct the size of the frame."""
    if len(data) >= 4:
        data[:4] = (len(data) - 4).to_bytes(4, "big")


# The broker.


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.messages.append(logging.Formatter().format(record))


def _play(seed: int, data: bytes) -> None:
    log = logging.getLogger("kbroker")
    errors = _Errors()
    propagate, log.propagate = log.propagate, False
    log.addHandler(errors)
    loop = SimLoop(seed)
    machine = Machine(loop, seed, {"auto.create.topics.enable": "false"})
    try:
        loop.run_until_complete(_story(machine, Random(seed), data))
    finally:
        loop.close()
        log.removeHandler(errors)
        log.propagate = propagate
    assert not errors.messages, errors.messages[0]


async def _story(machine: Machine, rng: Random, data: bytes) -> None:
    await machine.start()
    good = await machine.client("good")
    await good.create_topic(TOPIC)
    before = await good.produce(TOPIC, batch(b"one", b"two"))
    assert before.error_code == 0
    bad = await _raw(machine)
    pos = 0
    while pos < len(data) and not bad.closed.done():
        size = rng.choice((1, 3, 7, 50, 1000, len(data)))
        bad.transport.write(data[pos : pos + size])
        pos += size
        if rng.random() < 0.5:
            await asyncio.sleep(0.001)
    await asyncio.sleep(3.0)
    await _check_health(machine, good)
    bad.transport.abort()
    await machine.end()


async def _raw(machine: Machine) -> "RawClient":
    _, raw = await machine.loop.create_connection(lambda: RawClient(machine.loop), HOST, PORT, local_addr=("bad", 0))
    return raw


class RawClient(Client):
    """Sends raw bytes and ignores the responses."""

    def data_received(self, data: bytes) -> None:
        pass


async def _check_health(machine: Machine, good: Client) -> None:
    """Check that the other connection can fetch and produce, and that every stored batch is valid."""
    partition = machine.broker.services.replicas.get(TOPIC, 0)
    if partition is None:
        # A valid request may have deleted it.
        return
    log = partition.log
    first = log.log_start_offset
    if first == 0:
        assert values_of(await good.fetch_partition(TOPIC, 0))[:2] == [b"one", b"two"]
    offset = first
    while offset < log.log_end_offset:
        data = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
        for pos, header in iter_headers(data):
            assert header.base_offset == offset
            assert crc_of(data, pos, header.size) == header.crc, "a batch with a wrong CRC was stored"
            offset = header.next_offset
    after = await good.produce(TOPIC, batch(b"three"))
    assert after.error_code == 0, after.error_code
