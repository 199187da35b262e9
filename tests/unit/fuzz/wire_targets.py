"""Headers, each message in each version, and the hand-written decoders of Produce and Fetch."""

from functools import partial
from random import Random
from typing import Any

from kbroker.coordinator.group.classic.classic_group_member import subscribed_topics
from kbroker.coordinator.group.kinds import RECORD_CODEC
from protocol.apis import ALL_APIS
from protocol.errors import MalformedError
from protocol.fast.fetch import decode_fetch_request
from protocol.fast.produce import ProduceDecoder, decode_produce_request
from protocol.framing import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.messages.k00_produce import ProduceRequest
from protocol.messages.k01_fetch import FetchRequest
from protocol.schema.codec import decoder, encode
from protocol.schema.message import Message, message_info
from tests.unit.fuzz.check import Target
from tests.unit.fuzz.damage import Case, Spot
from tests.unit.fuzz.tracing_encoder import TracingEncoder
from tests.unit.support.random_messages import all_messages, random_message

# The bound on memory per byte of input: an element of a few bytes can take more than 100 bytes in memory. The constant
# bound of test_bounds.py, for messages with MAX_ELEMENTS elements, is too large for the small inputs here.
ELEMENT_MEMORY_PER_BYTE = 75
# The replacement of invalid UTF-8 can make a string longer than a string may be on the wire.
_LONGEST = 0x7FFF // 3


def targets() -> list[Target]:
    table = [
        Target("header.request", _request_header, (MalformedError,)),
        Target("header.response", _response_header, (MalformedError,)),
        Target("wire.produce", _produce, (MalformedError,), memory_per_byte=ELEMENT_MEMORY_PER_BYTE),
        Target("wire.fetch", _fetch, (MalformedError,), memory_per_byte=ELEMENT_MEMORY_PER_BYTE),
        Target("group.subscription", _subscription, (), memory_per_byte=ELEMENT_MEMORY_PER_BYTE),
        Target("group.records", _group_record, (MalformedError,), memory_per_byte=ELEMENT_MEMORY_PER_BYTE),
    ]
    for cls in all_messages():
        make = partial(_message, cls)
        table.append(
            Target(f"message.{cls.__name__}", make, (MalformedError,), memory_per_byte=ELEMENT_MEMORY_PER_BYTE)
        )
    return table


# Headers.


def _request_header(rng: Random) -> Case:
    api = rng.choice(list(ALL_APIS.values()))
    version = rng.randint(-1, 20)
    client_id = rng.choice((None, "", "client", "ä" * 50))
    data = encode_request_header(api.key, version, rng.getrandbits(31), client_id)

    def run(data: bytes) -> None:
        header = decode_request_header(data)
        assert header.body_pos <= len(data)

    return Case(data, run, (Spot(0, 2, "i16"), Spot(2, 2, "i16"), Spot(8, 2, "i16"), Spot(len(data) - 1, 1, "uvarint")))


def _response_header(rng: Random) -> Case:
    api = rng.choice(list(ALL_APIS.values()))
    data = encode_response_header(api.key, version := rng.randint(0, 20), rng.getrandbits(31))

    def run(data: bytes) -> None:
        _, pos = decode_response_header(data, api.key, version)
        assert pos <= len(data)

    return Case(data, run, (Spot(4, len(data) - 4, "uvarint"),))


# Messages.


def _message(cls: type[Message], rng: Random) -> Case:
    version = rng.randint(message_info(cls).min_version, message_info(cls).max_version)
    message = random_message(cls, version, rng)
    traced = TracingEncoder(message, version)
    decode = decoder(cls, version)

    def run(data: bytes) -> None:
        message, pos = decode(memoryview(data), 0)
        assert 0 <= pos <= len(data)
        if len(data) < _LONGEST:
            encoded = encode(message, version)
            assert encode(decode(encoded, 0)[0], version) == encoded

    return Case(bytes(traced.data), run, traced.spots)


def _versioned(message: Message, version: int) -> TracingEncoder:
    """Encode a message with its version (int16) before it."""
    traced = TracingEncoder(message, version)
    traced.data[:0] = version.to_bytes(2, "big")
    traced.spots = [Spot(0, 2, "i16"), *(spot._replace(pos=spot.pos + 2) for spot in traced.spots)]
    return traced


def _subscription(rng: Random) -> Case:
    version = rng.randint(0, 3)
    traced = _versioned(random_message(ConsumerProtocolSubscription, version, rng), version)

    def run(data: bytes) -> None:
        assert all(isinstance(topic, str) for topic in subscribed_topics(data) or ())

    return Case(bytes(traced.data), run, traced.spots)


def _group_record(rng: Random) -> Case:
    """A record of __consumer_offsets, of which the key or the value is damaged."""
    offset = rng.random() < 0.5
    key_version = rng.randint(0, 1) if offset else 2
    value_version = rng.randint(0, 4)
    key = _versioned(random_message(OffsetCommitKey if offset else GroupMetadataKey, key_version, rng), key_version)
    value_cls = OffsetCommitValue if offset else GroupMetadataValue
    value = _versioned(random_message(value_cls, value_version, rng), value_version)

    def run_key(data: bytes) -> None:
        check(data, bytes(value.data))

    def run_value(data: bytes) -> None:
        check(bytes(key.data), data)

    def check(key: bytes, value: bytes) -> None:
        record = RECORD_CODEC.decode(key, value)
        if record is not None and len(key) + len(value) < _LONGEST:
            encoded = RECORD_CODEC.encode(record)
            assert RECORD_CODEC.encode(RECORD_CODEC.decode(*encoded)) == encoded  # type: ignore[arg-type]

    if rng.random() < 0.3:
        return Case(bytes(key.data), run_key, key.spots)
    return Case(bytes(value.data), run_value, value.spots)


# The hand-written decoders, which must accept and reject the same input as the generated ones.


def _same(ours: Any, data: bytes, cls: type[Message], version: int, *, skips_tags: bool = False) -> tuple[Any, Any]:
    """Return the results of the hand-written and of the generated decoder; raises MalformedError if both do.

    skips_tags: the hand-written decoder ignores the contents of tagged fields.
    """
    view = memoryview(data)
    try:
        expected = decoder(cls, version)(view, 0)[0]
    except MalformedError:
        expected = None
    try:
        decoded = ours(view, 0, version)
    except MalformedError:
        assert expected is None, "only the hand-written decoder rejects it"
        raise
    assert expected is not None or skips_tags, "only the hand-written decoder accepts it"
    return decoded, expected


def _produce(rng: Random) -> Case:
    version = rng.randint(3, 13)
    traced = TracingEncoder(random_message(ProduceRequest, version, rng), version)

    decoder = ProduceDecoder(version)
    decoder.decode(memoryview(bytes(traced.data)), 0, version)

    def run(data: bytes) -> None:
        _same(decode_produce_request, data, ProduceRequest, version)
        decoded, expected = _same(decoder.decode, data, ProduceRequest, version)
        assert decoded[:3] == (expected.transactional_id, expected.acks, expected.timeout_ms)
        assert decoded[3] == [
            (topic.topic_id if version >= 13 else topic.name, [(p.index, p.records) for p in topic.partition_data])
            for topic in expected.topic_data
        ]

    return Case(bytes(traced.data), run, traced.spots)


def _fetch(rng: Random) -> Case:
    version = rng.randint(4, 18)
    traced = TracingEncoder(random_message(FetchRequest, version, rng), version)

    def run(data: bytes) -> None:
        decoded, expected = _same(decode_fetch_request, data, FetchRequest, version, skips_tags=version >= 12)
        if expected is None:
            return
        assert decoded.max_wait_ms == expected.max_wait_ms
        assert decoded.rack_id == (expected.rack_id if version >= 11 else None)
        assert decoded.replica_id == (expected.replica_state.replica_id if version >= 15 else expected.replica_id)
        assert [len(partitions) for _, partitions in decoded.topics] == [len(t.partitions) for t in expected.topics]
        assert [topic for topic, _ in decoded.topics] == [
            topic.topic_id if version >= 13 else topic.topic for topic in expected.topics
        ]
        assert [partitions for _, partitions in decoded.forgotten] == [
            topic.partitions for topic in expected.forgotten_topics_data
        ]

    return Case(bytes(traced.data), run, traced.spots)
