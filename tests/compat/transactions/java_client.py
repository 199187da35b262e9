"""The transaction tests' client for Apache Kafka's Java clients, current and old versions."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway, find_jar_path
from py4j.protocol import Py4JJavaError

from scripts.benchmark.peers import CACHE, QUIET, kafka_classpath, maven
from tests.compat.support import DEADLINE_S, eventually, unique
from tests.compat.transactions.clients import ABORTABLE, COMMITTED, FATAL, FENCED, Member, TransactionError

TIMEOUT_MS = int(1000 * DEADLINE_S)
JARS = CACHE.parent / "kafka-jars"

# By the documentation of KafkaProducer these are fatal; after any other error the transaction can be aborted.
_FENCED = {"ProducerFencedException", "InvalidProducerEpochException"}
_FATAL = {"OutOfOrderSequenceException", "UnsupportedVersionException", "InvalidPidMappingException"}


def jar(artifact: str, version: str) -> Path:
    """Return a jar of Apache Kafka, downloaded once with Maven."""
    path = JARS / f"{artifact}-{version}.jar"
    if not path.exists():
        maven("dependency:copy", f"-Dartifact=org.apache.kafka:{artifact}:{version}", f"-DoutputDirectory={JARS}")
    return path


@contextmanager
def old_clients(version: str, log: Path) -> Iterator[Any]:
    """A JVM with this version of kafka-clients and the current versions of its dependencies."""
    others = [
        path for stem in ("slf4j", "lz4", "snappy", "zstd") for path in Path(kafka_classpath()).parent.glob(f"{stem}*")
    ]
    with java_gateway(":".join(map(str, [jar("kafka-clients", version), *others])), log) as java:
        yield java


@contextmanager
def java_gateway(classpath: str, log: Path) -> Iterator[Any]:
    """A JVM with these classes, in a process of its own."""
    logging.getLogger("py4j.java_gateway").setLevel(logging.CRITICAL)
    with log.open("w") as output:
        gateway = JavaGateway.launch_gateway(
            classpath=f"{classpath}:{find_jar_path()}",
            javaopts=["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", QUIET],
            die_on_exit=True,
            redirect_stdout=output,
            redirect_stderr=output,
        )
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()


def _transaction_error(error: Py4JJavaError) -> TransactionError:
    causes = []
    cause = error.java_exception
    while cause is not None:
        causes.append(cause.getClass().getSimpleName())
        cause = cause.getCause()
    kind = FENCED if _FENCED & set(causes) else FATAL if _FATAL & set(causes) else ABORTABLE
    return TransactionError(kind, f"{' < '.join(causes)}: {error.java_exception.getMessage()}")


def _do(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Py4JJavaError as error:
        raise _transaction_error(error) from error


class JavaTransactionalProducer:
    def __init__(self, java: Any, settings: dict[str, Any], old: bool) -> None:
        self._java = java
        self._old = old
        self._clients = java.org.apache.kafka.clients
        serializer = java.org.apache.kafka.common.serialization.ByteArraySerializer
        defaults = {"linger.ms": 0, "retry.backoff.ms": 20, "max.block.ms": TIMEOUT_MS}
        self._producer = _do(
            self._clients.producer.KafkaProducer, _map(java, {**defaults, **settings}), serializer(), serializer()
        )
        self._sent: list[Any] = []

    def init(self) -> None:
        _do(self._producer.initTransactions)

    def begin(self) -> None:
        self._sent.clear()
        _do(self._producer.beginTransaction)

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        record = self._clients.producer.ProducerRecord(topic, partition, None, value)
        self._sent.append(_do(self._producer.send, record))

    def flush(self) -> None:
        _do(self._producer.flush)
        for future in self._sent:
            _do(future.get)

    def send_offsets(self, metadata: Any, topic: str, offsets: Mapping[int, int]) -> None:
        positions = self._java.java.util.HashMap()
        for partition, offset in offsets.items():
            tp = self._java.org.apache.kafka.common.TopicPartition(topic, partition)
            positions.put(tp, self._clients.consumer.OffsetAndMetadata(offset))
        _do(self._producer.sendOffsetsToTransaction, positions, metadata)

    def commit(self) -> None:
        _do(self._producer.commitTransaction)

    def abort(self) -> None:
        _do(self._producer.abortTransaction)

    def close(self) -> None:
        if self._old:
            self._producer.close(0, self._java.java.util.concurrent.TimeUnit.MILLISECONDS)
        else:
            self._producer.close(_ms(self._java, 0))


class JavaMember(Member):
    def __init__(self, java: Any, consumer: Any, topic: str, group: str | None) -> None:
        """`group`: the group id, for clients without group metadata; else None."""
        self._java = java
        self._group = group
        super().__init__(consumer, _list(java, [topic]), lambda: consumer.assignment().size())

    def metadata(self) -> Any:
        return self._consumer.groupMetadata() if self._group is None else self._group

    def poll(self) -> list[bytes]:
        return [value for _, value in _polled(self._java, self._consumer)]


class JavaClient:
    def __init__(self, java: Any, bootstrap: str, knows_kip_447: bool = True) -> None:
        self._java = java
        self._bootstrap = bootstrap
        self.knows_kip_447 = knows_kip_447
        self._open: list[Callable[[], None]] = []
        self._observers: dict[str, Any] = {}

    def transactional_producer(self, transactional_id: str, timeout_ms: int = 60_000) -> JavaTransactionalProducer:
        return self._producer({"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms})

    def plain(self) -> JavaTransactionalProducer:
        return self._producer({"enable.idempotence": "true"})

    def read(self, topic: str, isolation: str, partitions: int = 1) -> list[list[bytes]]:
        consumer = self._consumer(isolation)
        values: list[list[bytes]] = [[] for _ in range(partitions)]
        assignment = _list(self._java, [self._partition(topic, index) for index in range(partitions)])
        consumer.assign(assignment)
        try:
            ends = dict(consumer.endOffsets(assignment))

            def read() -> bool:
                for partition, value in _polled(self._java, consumer):
                    values[partition].append(value)
                return all(consumer.position(tp) >= end for tp, end in ends.items())

            eventually(read, f"the ends of {topic}", interval=0, progress=lambda: sum(map(len, values)))
        finally:
            consumer.close()
        return values

    def end(self, topic: str, isolation: str, partition: int = 0) -> int:
        if isolation not in self._observers:
            self._observers[isolation] = self._consumer(isolation)
            self._open.append(self._observers[isolation].close)
        tp = self._partition(topic, partition)
        return int(self._observers[isolation].endOffsets(_list(self._java, [tp])).get(tp))

    def member(self, group: str, topic: str) -> JavaMember:
        consumer = self._consumer(COMMITTED, group, {"heartbeat.interval.ms": 200, "session.timeout.ms": 10_000})
        member = JavaMember(self._java, consumer, topic, None if self.knows_kip_447 else group)
        self._open.append(member.leave)
        return member

    def committed(self, group: str, topic: str, partition: int = 0, timeout_s: float = DEADLINE_S) -> int:
        consumer = self._consumer(COMMITTED, group)
        tp = self._partition(topic, partition)
        pending = _ms(self._java, int(timeout_s * 1000))
        try:
            if self.knows_kip_447:
                partitions = self._java.java.util.HashSet()
                partitions.add(tp)
                committed = consumer.committed(partitions, pending).get(tp)
            else:
                committed = consumer.committed(tp, pending)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() != "TimeoutException":
                raise
            raise TimeoutError(str(error)) from error
        finally:
            consumer.close()
        return -1 if committed is None else int(committed.offset())

    def close(self) -> None:
        for close in self._open:
            close()

    def _producer(self, settings: dict[str, Any]) -> JavaTransactionalProducer:
        producer = JavaTransactionalProducer(
            self._java, {"bootstrap.servers": self._bootstrap, **settings}, not self.knows_kip_447
        )
        self._open.append(producer.close)
        return producer

    def _consumer(self, isolation: str, group: str | None = None, settings: dict[str, Any] | None = None) -> Any:
        deserializer = self._java.org.apache.kafka.common.serialization.ByteArrayDeserializer
        defaults = {
            "bootstrap.servers": self._bootstrap,
            "isolation.level": isolation,
            "group.id": group or unique("reader"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "fetch.max.wait.ms": 50,
        }
        return self._java.org.apache.kafka.clients.consumer.KafkaConsumer(
            _map(self._java, {**defaults, **(settings or {})}), deserializer(), deserializer()
        )

    def _partition(self, topic: str, index: int) -> Any:
        return self._java.org.apache.kafka.common.TopicPartition(topic, index)


def _polled(java: Any, consumer: Any) -> list[tuple[int, bytes]]:
    iterator = consumer.poll(_ms(java, 20)).iterator()
    records = []
    while iterator.hasNext():
        record = iterator.next()
        records.append((record.partition(), record.value()))
    return records


def _ms(java: Any, ms: int) -> Any:
    return java.java.time.Duration.ofMillis(ms)


def _list(java: Any, items: list[Any]) -> Any:
    result = java.java.util.ArrayList()
    for item in items:
        result.add(item)
    return result


def _map(java: Any, values: Mapping[str, Any]) -> Any:
    result = java.java.util.HashMap()
    for name, value in values.items():
        result.put(name, str(value))
    return result
