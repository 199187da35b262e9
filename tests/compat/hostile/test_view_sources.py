"""Batches on the source of a view that the broker has to decode for the view's consumers, but cannot."""

from contextlib import ExitStack

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.records.batch import build_batch, iter_headers
from protocol.records.record import encode_varint
from tests.compat.hostile.raw_client import RawClient, create_topic, produce_batch
from tests.compat.hostile.target import MIB, Target
from tests.compat.hostile.test_records import NOW, ZSTD, batch_of, bombs

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

FETCH_VERSION = 11
# The number of partitions of a topic that is created as a view.
OF_THE_SOURCE = -1
UNFILTERABLE = {ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE}


def create_with_view(target: Target, source: str) -> None:
    """Create a topic with a view SOURCE.view, which selects the tag "paid"."""
    create_topic(target.bootstrap, source, max_message_bytes=8 * MIB)
    configs = {"kbroker.view.of": source, "kbroker.view.filter": "paid"}
    create_topic(target.bootstrap, f"{source}.view", OF_THE_SOURCE, **configs)


def produce(target: Target, topic: str, batch: bytes) -> None:
    with RawClient(target.bootstrap) as client:
        assert produce_batch(client, topic, batch) == 0


def check_nothing_is_sent(target: Target, view: str, offset: int, codes: set[int], consumers: int = 12) -> None:
    """Fetch with several consumers at once: each gets one of these codes, and no records."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=50 * MIB)
    topics = [FetchTopic(topic=view, partitions=[partition])]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=topics)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(target.bootstrap)) for _ in range(consumers)]
        for client in clients:
            client.send(client.client.send(request, FETCH_VERSION).frame)
        for client in clients:
            [data] = client.receive_response().decode(FetchResponse).responses[0].partitions
            assert data.error_code in codes, data
            # A control batch may move the position.
            assert all(header.is_control for _, header in iter_headers(data.records or b""))


def test_records_that_decompress_to_much_memory(target: Target) -> None:
    """280 records of 1 MB in 12 KB: unselected, they must neither be sent nor fill the memory."""
    create_with_view(target, "viewed-large")
    record = (NOW, None, bytes(1_000_000), ((b"TAGS", b"open"),))
    batch = bytes(build_batch([record] * 280, codec=ZSTD))
    assert len(batch) < 64 * 1024
    produce(target, "viewed-large", batch)

    def attack() -> None:
        check_nothing_is_sent(target, "viewed-large.view", 0, {ErrorCode.MESSAGE_TOO_LARGE})
        target.pace(100)

    target.attacked("large batches of a view's source", attack)


def test_bombs_on_the_source_of_a_view(target: Target) -> None:
    create_with_view(target, "viewed-bombs")
    # Without those of several megabytes, whose batches take that memory themselves.
    batches = [batch_of(codec, body) for codec, body in bombs().values() if len(body) <= 2 * MIB]
    for batch in batches:
        produce(target, "viewed-bombs", batch)

    def attack() -> None:
        for offset in range(len(batches)):
            # Those of at most 24 MiB decompressed are skipped.
            check_nothing_is_sent(target, "viewed-bombs.view", offset, UNFILTERABLE | {ErrorCode.NONE}, consumers=3)
            target.pace(100)

    target.attacked("bombs on a view's source", attack)


def test_headers_that_never_end(target: Target) -> None:
    """The lengths of two headers move the parser back to where it was, 2**31 - 1 times."""
    create_with_view(target, "viewed-endless")
    headers = encode_varint(2**31 - 1) + b"\x08TAGS\x08none" + b"\1\3" * 2 + b"\x08TAGS\x08paid"
    record = b"\0\0\0\1\1" + headers
    produce(target, "viewed-endless", batch_of(0, encode_varint(len(record)) + record))

    def attack() -> None:
        check_nothing_is_sent(target, "viewed-endless.view", 0, {ErrorCode.INVALID_RECORD})
        target.pace(10)

    target.attacked("endless headers on a view's source", attack)
