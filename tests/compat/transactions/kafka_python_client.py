"""The transaction tests' client for kafka-python."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from tests.compat.kafka_python.helpers import poll
from tests.compat.support import DEADLINE_S, eventually
from tests.compat.transactions.clients import ABORTABLE, COMMITTED, FATAL, FENCED, Member, TransactionError


class KafkaPythonTransactionalProducer:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = KafkaProducer(
            linger_ms=0, retry_backoff_ms=20, max_block_ms=int(DEADLINE_S * 1000), **settings
        )
        self._sent: list[Any] = []

    def init(self) -> None:
        self._do(self._producer.init_transactions)

    def begin(self) -> None:
        self._sent.clear()
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._sent.append(self._do(self._producer.send, topic, value, partition=partition))

    def flush(self) -> None:
        self._do(self._producer.flush, DEADLINE_S)
        for future in self._sent:
            self._do(future.get, DEADLINE_S)

    def send_offsets(self, metadata: Any, topic: str, offsets: Mapping[int, int]) -> None:
        positions = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()
        }
        self._do(self._producer.send_offsets_to_transaction, positions, metadata)

    def commit(self) -> None:
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        self._do(self._producer.abort_transaction)

    def close(self) -> None:
        with suppress(KafkaTimeoutError):
            self._producer.close(0)

    def _do(self, call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        try:
            return call(*args, **keywords)
        except KafkaError as error:
            raise TransactionError(self._kind(error), repr(error)) from error

    def _kind(self, error: KafkaError) -> str:
        manager = self._producer._transaction_manager
        if isinstance(error, ProducerFencedError) or isinstance(manager.last_error, ProducerFencedError):
            return FENCED
        return FATAL if manager.has_fatal_error() else ABORTABLE


class KafkaPythonMember(Member):
    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        super().__init__(consumer, [topic], consumer.assignment)

    def metadata(self) -> Any:
        return self._consumer.group_metadata()

    def poll(self) -> list[bytes]:
        return [record.value for record in poll(self._consumer, timeout_ms=350)]


class KafkaPythonClient:
    knows_kip_447 = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._open: list[Callable[[], None]] = []
        self._observers: dict[str, KafkaConsumer] = {}

    def transactional_producer(
        self, transactional_id: str, timeout_ms: int = 60_000
    ) -> KafkaPythonTransactionalProducer:
        return self._producer(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

    def plain(self) -> KafkaPythonTransactionalProducer:
        return self._producer(enable_idempotence=True)

    def read(self, topic: str, isolation: str, partitions: int = 1) -> list[list[bytes]]:
        consumer = self._consumer(isolation)
        values: list[list[bytes]] = [[] for _ in range(partitions)]
        assignment = [TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(assignment)
        try:
            ends = consumer.end_offsets(assignment)

            def read() -> bool:
                for tp, part in consumer.poll(timeout_ms=20).items():
                    values[tp.partition] += [record.value for record in part]
                return all(consumer.position(tp) >= ends[tp] for tp in assignment)

            eventually(read, f"the ends of {topic}", interval=0, progress=lambda: sum(map(len, values)))
        finally:
            consumer.close()
        return values

    def end(self, topic: str, isolation: str, partition: int = 0) -> int:
        if isolation not in self._observers:
            self._observers[isolation] = self._consumer(isolation)
            self._open.append(self._observers[isolation].close)
        tp = TopicPartition(topic, partition)
        return int(self._observers[isolation].end_offsets([tp])[tp])

    def member(self, group: str, topic: str) -> KafkaPythonMember:
        settings = {"heartbeat_interval_ms": 200, "session_timeout_ms": 10_000, "enable_auto_commit": False}
        member = KafkaPythonMember(self._consumer(COMMITTED, group_id=group, **settings), topic)
        self._open.append(member.leave)
        return member

    def committed(self, group: str, topic: str, partition: int = 0, timeout_s: float = DEADLINE_S) -> int:
        consumer = self._consumer(COMMITTED, group_id=group, enable_auto_commit=False)
        try:
            committed = consumer.committed(TopicPartition(topic, partition), timeout_ms=int(timeout_s * 1000))
        except KafkaTimeoutError as error:
            raise TimeoutError(str(error)) from error
        finally:
            consumer.close()
        return -1 if committed is None else int(committed)

    def close(self) -> None:
        for close in self._open:
            close()

    def _producer(self, **settings: Any) -> KafkaPythonTransactionalProducer:
        producer = KafkaPythonTransactionalProducer({"bootstrap_servers": self._bootstrap, **settings})
        self._open.append(producer.close)
        return producer

    def _consumer(self, isolation: str, **settings: Any) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
            **settings,
        )
