"""The transaction tests' client for confluent-kafka (librdkafka)."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.compat.support import DEADLINE_S, eventually, unique
from tests.compat.transactions.clients import ABORTABLE, COMMITTED, FATAL, FENCED, Member, TransactionError

POLL = 0.02
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


def _kind(error: KafkaError) -> str:
    if error.code() in _FENCED and error.fatal():
        return FENCED
    return ABORTABLE if error.txn_requires_abort() else FATAL


def _do(call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    try:
        return call(*args, **keywords)
    except KafkaException as error:
        raise TransactionError(_kind(error.args[0]), f"{error.args[0].name()}: {error.args[0].str()}") from error


class ConfluentTransactionalProducer:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = Producer({"linger.ms": 0, "log_level": 2, **settings})
        self._failed: list[KafkaError] = []

    def init(self) -> None:
        _do(self._producer.init_transactions, DEADLINE_S)

    def begin(self) -> None:
        self._failed.clear()
        _do(self._producer.begin_transaction)

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        _do(self._producer.produce, topic, value, partition=partition, on_delivery=self._delivered)
        # It raises if the client has learned meanwhile that it is fenced.
        _do(self._producer.poll, 0)

    def flush(self) -> None:
        assert self._producer.flush(DEADLINE_S) == 0, "not everything was delivered"
        if self._failed:
            raise TransactionError(_kind(self._failed[0]), self._failed[0].str())

    def send_offsets(self, metadata: Any, topic: str, offsets: Mapping[int, int]) -> None:
        positions = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        _do(self._producer.send_offsets_to_transaction, positions, metadata, DEADLINE_S)

    def commit(self) -> None:
        _do(self._producer.commit_transaction, DEADLINE_S)

    def abort(self) -> None:
        _do(self._producer.abort_transaction, DEADLINE_S)

    def close(self) -> None:
        self._producer.purge()
        with suppress(KafkaException, SystemError):  # flush may raise an earlier error again, also from a callback
            self._producer.flush(5)

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._failed.append(error)


class ConfluentMember(Member):
    def __init__(self, consumer: Consumer, topic: str) -> None:
        super().__init__(consumer, [topic], consumer.assignment)

    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def poll(self) -> list[bytes]:
        messages = self._consumer.consume(100, timeout=POLL)
        for message in messages:
            if message.error():
                raise KafkaException(message.error())
        return [message.value() for message in messages]


class ConfluentClient:
    knows_kip_447 = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._open: list[Callable[[], None]] = []
        self._observers: dict[str, Consumer] = {}

    def transactional_producer(self, transactional_id: str, timeout_ms: int = 60_000) -> ConfluentTransactionalProducer:
        return self._producer({"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms})

    def plain(self) -> ConfluentTransactionalProducer:
        return self._producer({"enable.idempotence": True})

    def read(self, topic: str, isolation: str, partitions: int = 1) -> list[list[bytes]]:
        consumer = self._consumer(isolation, unique("reader"), {"enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        values: list[list[bytes]] = [[] for _ in range(partitions)]
        ended: set[int] = set()

        def read() -> bool:
            for message in consumer.consume(1000, timeout=POLL):
                if not message.error():
                    values[message.partition()].append(message.value())
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise KafkaException(message.error())
            return len(ended) == partitions

        try:
            eventually(read, f"the ends of {topic}", interval=0, progress=lambda: sum(map(len, values)))
        finally:
            consumer.close()
        return values

    def end(self, topic: str, isolation: str, partition: int = 0) -> int:
        if isolation not in self._observers:
            self._observers[isolation] = self._consumer(isolation, unique("observer"))
            self._open.append(self._observers[isolation].close)
        observer, tp = self._observers[isolation], TopicPartition(topic, partition)
        found: list[int] = []

        def read() -> bool:
            # librdkafka reports a leader that has moved, and finds the new one for the next call.
            try:
                found.append(observer.get_watermark_offsets(tp, timeout=DEADLINE_S)[1])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise
            return bool(found)

        eventually(read, f"the end of {topic}-{partition}")
        return found[0]

    def member(self, group: str, topic: str) -> ConfluentMember:
        settings = {"heartbeat.interval.ms": 200, "session.timeout.ms": 10_000}
        member = ConfluentMember(self._consumer(COMMITTED, group, settings), topic)
        self._open.append(member.leave)
        return member

    def committed(self, group: str, topic: str, partition: int = 0, timeout_s: float = DEADLINE_S) -> int:
        consumer = self._consumer(COMMITTED, group)
        try:
            [committed] = consumer.committed([TopicPartition(topic, partition)], timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:
                raise
            raise TimeoutError(str(error)) from error
        finally:
            consumer.close()
        return committed.offset if committed.offset >= 0 else -1

    def close(self) -> None:
        for close in self._open:
            close()

    def _producer(self, settings: dict[str, Any]) -> ConfluentTransactionalProducer:
        producer = ConfluentTransactionalProducer({"bootstrap.servers": self._bootstrap, **settings})
        self._open.append(producer.close)
        return producer

    def _consumer(self, isolation: str, group: str, settings: dict[str, Any] | None = None) -> Consumer:
        defaults = {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "log_level": 2,
        }
        return Consumer({**defaults, **(settings or {})})
