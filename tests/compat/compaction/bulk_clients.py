"""Apache Kafka's Java clients; each call reads or sends many records (BulkClients.java)."""

from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from tests.compat.java_programs import classpath_of
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.support import eventually

SOURCE = Path(__file__).with_name("BulkClients.java")

_HEAD = Struct(">iqq")
_INT = Struct(">i")
_LONG = Struct(">q")


class Record(NamedTuple):
    """A record; its offset is -1 before it is sent."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class BulkClients:
    """The class of BulkClients.java, compiled and loaded into a JVM that has Kafka's jars."""

    def __init__(self, jvm: Jvm) -> None:
        java = jvm.java
        self._jvm = jvm
        classes = classpath_of(SOURCE).rpartition(":")[2]
        urls = jvm.gateway.new_array(java.java.net.URL, 1)
        urls[0] = java.java.io.File(classes).toURI().toURL()
        loaded = java.java.net.URLClassLoader(urls).loadClass("BulkClients")
        self._clients = loaded.getDeclaredConstructor(jvm.gateway.new_array(java.java.lang.Class, 0)).newInstance(
            jvm.gateway.new_array(java.java.lang.Object, 0)
        )

    def read(self, bootstrap: str, topic: str, partitions: int = 1) -> list[Record]:
        """Return every record up to the current end, by partition, in the order of reading."""
        read = decoded(self._clients.read(self._reading(bootstrap), topic, partitions))
        return sorted(read, key=lambda record: record.partition)

    def ends(self, bootstrap: str, topic: str, partitions: int = 1) -> list[int]:
        """Return the high watermark of each partition."""
        return _longs(self._clients.ends(self._reading(bootstrap), topic, partitions))

    def send(self, bootstrap: str, topic: str, records: Sequence[Record], **properties: Any) -> list[int]:
        """Send the records, and return their offsets."""
        properties_by_name = {name.replace("_", "."): value for name, value in properties.items()}
        config = self._jvm.settings({"bootstrap.servers": bootstrap, **properties_by_name})
        return _longs(self._clients.send(config, topic, encoded(records)))

    def reader(self, bootstrap: str, topic: str, group: str) -> "Reader":
        return Reader(self._jvm, {"bootstrap.servers": bootstrap, "group.id": group, "fetch.max.wait.ms": 50}, topic)

    def _reading(self, bootstrap: str) -> Any:
        config = {"bootstrap.servers": bootstrap, "auto.offset.reset": "none", "fetch.max.wait.ms": 50}
        return self._jvm.settings(config)


class Reader:
    """A Java consumer of partition 0 that commits and seeks."""

    def __init__(self, jvm: Jvm, config: dict[str, object], topic: str) -> None:
        self._java = jvm.java
        self._tp = jvm.java.org.apache.kafka.common.TopicPartition(topic, 0)
        deserializer = jvm.java.org.apache.kafka.common.serialization.ByteArrayDeserializer
        settings = jvm.settings({**config, "enable.auto.commit": "false", "auto.offset.reset": "none"})
        self._consumer = jvm.java.org.apache.kafka.clients.consumer.KafkaConsumer(
            settings, deserializer(), deserializer()
        )
        self._consumer.assign(jvm.java.java.util.List.of(self._tp))

    def commit(self, offset: int) -> None:
        position = self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset)
        self._consumer.commitSync(self._java.java.util.Map.of(self._tp, position))

    def committed(self) -> int:
        result: int = self._consumer.committed(self._java.java.util.Set.of(self._tp)).get(self._tp).offset()
        return result

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._tp, offset)

    def next_offset(self) -> int:
        """Return the offset of the next record from the position."""

        def poll() -> Any:
            records = self._consumer.poll(self._java.java.time.Duration.ofMillis(100)).iterator()
            return records.next() if records.hasNext() else None

        offset: int = eventually(poll, "a record").offset()
        return offset

    def beginning(self) -> int:
        result: int = self._consumer.beginningOffsets(self._java.java.util.List.of(self._tp)).get(self._tp)
        return result

    def offset_for_time(self, timestamp: int) -> int:
        timestamps = self._java.java.util.HashMap()
        timestamps.put(self._tp, self._java.java.lang.Long.valueOf(str(timestamp)))
        offset: int = self._consumer.offsetsForTimes(timestamps).get(self._tp).offset()
        return offset

    def close(self) -> None:
        self._consumer.close()


def encoded(records: Sequence[Record]) -> bytes:
    out = bytearray()
    for record in records:
        out += _HEAD.pack(record.partition, record.offset, record.timestamp)
        for data in (record.key, record.value):
            out += _sized(data)
        out += _INT.pack(len(record.headers))
        for name, content in record.headers:
            out += _sized(name) + _sized(content)
    return bytes(out)


def decoded(data: bytes) -> list[Record]:
    records = []
    position = 0

    def sized() -> bytes | None:
        nonlocal position
        (size,) = _INT.unpack_from(data, position)
        position += _INT.size + max(size, 0)
        return None if size < 0 else data[position - size : position]

    while position < len(data):
        partition, offset, timestamp = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        key, value = sized(), sized()
        (count,) = _INT.unpack_from(data, position)
        position += _INT.size
        headers = tuple((sized() or b"", sized()) for _ in range(count))
        records.append(Record(partition, offset, timestamp, key, value, headers))
    return records


def _longs(data: bytes) -> list[int]:
    return [number for (number,) in _LONG.iter_unpack(data)]


def _sized(data: bytes | None) -> bytes:
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data
