"""Every message in every version: compared with other encoders, truncated and damaged."""

from random import Random

import pytest

from protocol.apis import APIS, INTER_BROKER_APIS, ApiKey
from protocol.errors import MalformedError
from protocol.schema.codec import decode, decoder, encode
from protocol.schema.grammar import grammar, plain
from protocol.schema.message import Message, message_info
from tests.sampling import third_of
from tests.unit.support.foreign_encoders import kafka_python_class, kafka_python_encode, kio_class, kio_encode
from tests.unit.support.random_messages import all_messages, all_versions, random_message, reset_own_fields

ROUNDS = 12

# Sizes beyond any frame, negative ones, and a varint without an end.
INVALID_SIZES = (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff", b"\x80")

by_class = pytest.mark.parametrize("cls", all_messages(), ids=lambda cls: cls.__name__)


def samples(cls: type[Message], rounds: int = ROUNDS):
    """Yield (version, message) pairs, the same ones in every run of a third."""
    info = message_info(cls)
    for version in range(info.min_version, info.max_version + 1):
        for seed in third_of(range(rounds)):
            yield version, random_message(cls, version, Random(f"{cls.__name__} {version} {seed}"))


@by_class
def test_a_decoded_encoding_is_the_message(cls: type[Message]) -> None:
    for version, message in samples(cls):
        encoded = encode(message, version)
        assert decode(cls, encoded, version) == message
        assert decode(cls, memoryview(encoded), version) == message


@by_class
def test_decoding_starts_and_ends_where_the_message_does(cls: type[Message]) -> None:
    for version, message in samples(cls, 1):
        encoded = encode(message, version)
        decoded, end = decoder(cls, version)(memoryview(b"abc" + encoded + b"more"), 3)
        assert decoded == message
        assert end == 3 + len(encoded)


@by_class
def test_the_grammar_agrees(cls: type[Message]) -> None:
    known = message_info(cls)
    grammars = {version: grammar(cls, version) for version in range(known.min_version, known.max_version + 1)}
    for version, message in samples(cls):
        encoded = encode(message, version)
        assert grammars[version].build(plain(message, version)) == encoded
        assert grammars[version].parse(encoded) == plain(message, version)


@by_class
def test_kio_encodes_the_same_bytes(cls: type[Message]) -> None:
    for version, message in samples(cls):
        reset_own_fields(message)
        other = kio_encode(message, version)
        assert other is None or other == encode(message, version)


@by_class
def test_kafka_python_encodes_the_same_bytes(cls: type[Message]) -> None:
    for version, message in samples(cls):
        other = kafka_python_encode(message, version)
        assert other is None or other == encode(message, version)


# Delegation tokens, UnregisterBroker, the groups of KIP-848, KIP-932 and KIP-1071, client telemetry.
NOT_IN_KAFKA_PYTHON = (*range(38, 42), ApiKey.UNREGISTER_BROKER, 68, 69, 71, 72, *range(76, 80), *range(83, 93))


def test_foreign_encoders_have_every_request_and_response() -> None:
    """kio has those between brokers too; kafka-python does not."""
    messages = [(cls, message_info(cls), version) for cls, version in all_versions()]
    unknown = [
        (cls.__name__, version)
        for cls, info, version in messages
        if info.key in APIS
        and (
            kio_class(cls.__name__, info.kind, version) is None
            or not (kafka_python_class(cls.__name__) or info.key in NOT_IN_KAFKA_PYTHON)
        )
    ]
    assert unknown == []
    between_brokers = {
        (cls.__name__, version)
        for cls, info, version in messages
        if info.key in INTER_BROKER_APIS and kio_class(cls.__name__, info.kind, version) is None
    }
    # kbroker's own.
    own = ("ForwardRecords", "DescribeReplicaLogs")
    assert between_brokers == {(f"{name}{kind}", 0) for name in own for kind in ("Request", "Response")}


@by_class
def test_every_truncation_is_malformed(cls: type[Message]) -> None:
    for version, message in samples(cls, 2):
        encoded = encode(message, version)
        decode_message = decoder(cls, version)
        for size in range(len(encoded)):
            with pytest.raises(MalformedError):
                decode_message(memoryview(encoded)[:size], 0)


@by_class
def test_damaged_bytes_are_a_message_or_malformed(cls: type[Message]) -> None:
    """Only MalformedError is raised: no IndexError, UnicodeDecodeError or MemoryError."""
    rng = Random(cls.__name__)
    for version, message in samples(cls, 3):
        encoded = encode(message, version)
        decode_message = decoder(cls, version)
        for _ in range(40):
            try:
                decoded = decode_message(memoryview(damage(encoded, rng)), 0)[0]
            except MalformedError:
                continue
            assert isinstance(decoded, cls)


def damage(encoded: bytes, rng: Random) -> bytearray:
    """Replace up to three parts by invalid sizes or random bytes, of the same or another length."""
    damaged = bytearray(encoded)
    for _ in range(rng.randint(1, 3)):
        pos = rng.randrange(len(damaged) + 1)
        damaged[pos : pos + rng.randint(0, 4)] = rng.choice((*INVALID_SIZES, rng.randbytes(4)))
    return damaged
