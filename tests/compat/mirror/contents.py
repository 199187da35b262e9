"""Writes records of every kind, and reads what a cluster has stored."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.records.batch import iter_headers
from tests.compat.broker_connection import BrokerConnection
from tests.compat.support import DEADLINE_S, eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
QUIET = {"log_level": 0}
_FETCH_VERSION = 11


class Content(NamedTuple):
    """A record as clients see it, without its offset, which differs between clusters."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: tuple[int, int]  # (type, milliseconds)


def content_of(message: Message) -> Content:
    return Content(message.key(), message.value(), message.headers() or [], message.timestamp())


def producer(bootstrap: str, **settings: object) -> Producer:
    """`settings`: with underscores for dots."""
    own = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, **QUIET, **own})


def flush(sender: Producer) -> None:
    assert sender.flush(DEADLINE_S) == 0, "not everything was delivered"


def consumer(bootstrap: str, group: str = "contents", **settings: object) -> Consumer:
    """A consumer that commits nothing by itself. `settings`: with underscores for dots."""
    own = {name.replace("_", "."): value for name, value in settings.items()}
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 50}
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, **defaults, **QUIET, **own})


def create_topic(bootstrap: str, topic: str, partitions: int, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(DEADLINE_S)


def write_all_kinds(bootstrap: str, topic: str, partitions: int, label: str, count: int) -> None:
    """Write `count` records to each partition with each codec: null and empty parts, headers, chosen timestamps."""
    start_ms = int(time.time() * 1000) - 3_600_000
    for codec in CODECS:
        sender = producer(bootstrap, compression_type=codec, linger_ms=20)
        for number in range(count):
            for partition in range(partitions):
                name = f"{label}-{codec}-{number}".encode()
                sender.produce(
                    topic,
                    (b"value of " + name, None, b"", b"long " + name * 20)[number % 4],
                    key=(name, b"", None)[number % 3],
                    headers=[("codec", codec.encode()), ("n", name), ("n", b"again"), ("null", None)][: number % 5],
                    partition=partition,
                    timestamp=start_ms + number * 1000,
                )
                sender.poll(0)
        flush(sender)


def partitions_of(reader: Consumer, topic: str) -> int:
    """Return the number of partitions, 0 for a topic that does not exist."""
    found = reader.list_topics(topic, timeout=DEADLINE_S).topics[topic]
    return 0 if found.error else len(found.partitions)


def read(bootstrap: str, topic: str, **settings: object) -> list[list[Message]]:
    """Return the committed records of each partition, up to the present last stable offset."""
    reader = consumer(bootstrap, enable_partition_eof=True, **settings)
    try:
        partitions = partitions_of(reader, topic)
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        return read_assigned(reader, partitions)
    finally:
        reader.close()


def read_assigned(reader: Consumer, partitions: int) -> list[list[Message]]:
    """Read every partition of the consumer's assignment to its present end."""
    records: list[list[Message]] = [[] for _ in range(partitions)]
    ended: set[int] = set()

    def has_ended() -> bool:
        for message in reader.consume(1000, timeout=0.1):
            if message.error() is None:
                records[message.partition()].append(message)
            elif message.error().name() == "_PARTITION_EOF":
                ended.add(message.partition())
            else:
                raise KafkaException(message.error())
        return len(ended) == partitions

    eventually(has_ended, "the ends of all partitions", interval=0, progress=lambda: sum(map(len, records)))
    return records


def contents(bootstrap: str, topic: str) -> list[list[Content]]:
    """Return the committed records of each partition."""
    return [[content_of(message) for message in messages] for messages in read(bootstrap, topic)]


def configs(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the configs that the topic itself has."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in described.result(DEADLINE_S).items() if entry.source == 1}


def stored_codecs(bootstrap: str, topic: str, partition: int = 0) -> set[int]:
    """Return the codecs of the batches at the start of a partition, without those of transaction markers."""
    fetch = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[fetch])])
    with BrokerConnection(bootstrap) as connection:
        response = connection.request(request, _FETCH_VERSION, FetchResponse)
    return set(_codecs(bytes(response.responses[0].partitions[0].records or b"")))


def _codecs(batches: bytes) -> Iterator[int]:
    for _, header in iter_headers(batches):
        if not header.is_control:
            yield header.codec
