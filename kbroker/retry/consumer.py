"""Process records, and send those that fail to retry and dead-letter topics.

The first is for kafka-python and confluent-kafka, the second for aiokafka.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from kbroker.retry.batch import Policies, PollBatch, client_library, first_offsets
from kbroker.retry.policy import RetryPolicy
from kbroker.retry.records import OutgoingRecord

# Called with a record of the client. It may return records, which are produced if it succeeds.
Handler = Callable[[Any], Iterable[OutgoingRecord] | None]


class RetryingConsumer:
    """Processes the records of a consumer of kafka-python or confluent-kafka, which is subscribed to `policy.topics`.

    An exception of the handler sends the record to the policy's retry topic, or to its dead-letter topic after the last
    attempt; the records after it are processed without a wait. Offsets are committed when the sent records are
    acknowledged (at least once). With `exactly_once` the producer has a transactional id: failed records, the records
    that the handler returns, and the offsets are committed in one transaction for each poll.
    """

    def __init__(
        self,
        consumer: Any,
        producer: Any,
        policy: RetryPolicy | Sequence[RetryPolicy],
        *,
        not_retryable: tuple[type[BaseException], ...] = (),
        exactly_once: bool = False,
    ) -> None:
        """`not_retryable`: exceptions that send a record to the dead-letter topic at once."""
        self._clients = _clients(consumer, producer, exactly_once)
        self._policies = Policies(policy, not_retryable)
        self._exactly_once = exactly_once
        if exactly_once:
            producer.init_transactions()

    def run(self, handler: Handler, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Poll and process until `should_stop` returns true."""
        while not should_stop():
            self.poll(handler)

    def poll(self, handler: Handler, timeout_s: float = 1.0) -> PollBatch:
        """Process the records of one poll, which waits up to `timeout_s` seconds.

        Raises the errors of the clients. Nothing is committed then: the records are polled again, in this process or
        after a restart. After a rebalance, returns an empty batch instead.
        """
        records = self._clients.poll(timeout_s)
        batch = PollBatch(self._policies)
        if not records:
            return batch
        received = [self._clients.received(record) for record in records]
        is_open = False
        try:
            for native, record in zip(records, received, strict=True):
                try:
                    outputs = tuple(handler(native) or ())
                except Exception as error:
                    batch.add_failure(record, error)
                else:
                    batch.add_success(record, outputs)
            is_sent = False
            while not is_sent:
                if self._exactly_once:
                    self._clients.begin()
                    is_open = True
                is_sent = self._send(batch)
                if is_open and not is_sent:
                    self._clients.abort()
                    is_open = False
                    batch.forget_acknowledgements()
            if is_open:
                self._clients.commit_transaction(batch.next_offsets)
            else:
                self._clients.commit(batch.next_offsets)
        except BaseException as error:
            if is_open:
                with suppress(Exception):  # the first error is raised, or the partitions have another owner
                    self._clients.abort()
            self._clients.rewind(first_offsets(received))
            if not self._clients.is_rebalance(error):
                raise
            return PollBatch(self._policies)
        return batch

    def _send(self, batch: PollBatch) -> bool:
        """Send the records that are not acknowledged. Returns false if one was refused: then others replace it."""
        for group in batch.unsent():
            errors = self._clients.deliver([unsent.record for unsent in group])
            if not batch.settle(group, errors, self._clients):
                return False
        return True


def _clients(consumer: Any, producer: Any, exactly_once: bool) -> Any:
    library = client_library(consumer)
    if library == "aiokafka":
        raise TypeError("a consumer of aiokafka needs AsyncRetryingConsumer")
    if library == "kafka":
        from kbroker.retry.clients.kafka_python import KafkaPythonClients

        return KafkaPythonClients(consumer, producer, exactly_once)
    from kbroker.retry.clients.confluent import ConfluentClients

    return ConfluentClients(consumer, producer)


# Called with a record of aiokafka. It may return records, which are produced if it succeeds.
AsyncHandler = Callable[[Any], Awaitable[Iterable[OutgoingRecord] | None]]


class AsyncRetryingConsumer:
    """Processes the records of an AIOKafkaConsumer, as RetryingConsumer does. The handler is a coroutine function."""

    def __init__(
        self,
        consumer: Any,
        producer: Any,
        policy: RetryPolicy | Sequence[RetryPolicy],
        *,
        not_retryable: tuple[type[BaseException], ...] = (),
        exactly_once: bool = False,
    ) -> None:
        """`not_retryable`: exceptions that send a record to the dead-letter topic at once."""
        if client_library(consumer) != "aiokafka":
            raise TypeError("only a consumer of aiokafka needs AsyncRetryingConsumer")
        from kbroker.retry.clients.aiokafka_clients import AiokafkaClients

        self._clients = AiokafkaClients(consumer, producer)
        self._policies = Policies(policy, not_retryable)
        self._exactly_once = exactly_once

    async def run(self, handler: AsyncHandler, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Poll and process until `should_stop` returns true."""
        while not should_stop():
            await self.poll(handler)

    async def poll(self, handler: AsyncHandler, timeout_s: float = 1.0) -> PollBatch:
        """Process the records of one poll, which waits up to `timeout_s` seconds.

        Raises the errors of the clients. Nothing is committed then: the records are polled again, in this process or
        after a restart. After a rebalance, returns an empty batch instead.
        """
        records = await self._clients.poll(timeout_s)
        batch = PollBatch(self._policies)
        if not records:
            return batch
        received = [self._clients.received(record) for record in records]
        is_open = False
        try:
            for native, record in zip(records, received, strict=True):
                try:
                    outputs = tuple(await handler(native) or ())
                except Exception as error:
                    batch.add_failure(record, error)
                else:
                    batch.add_success(record, outputs)
            is_sent = False
            while not is_sent:
                if self._exactly_once:
                    await self._clients.begin()
                    is_open = True
                is_sent = await self._send(batch)
                if is_open and not is_sent:
                    await self._clients.abort()
                    is_open = False
                    batch.forget_acknowledgements()
            if is_open:
                await self._clients.commit_transaction(batch.next_offsets)
            else:
                await self._clients.commit(batch.next_offsets)
        except BaseException as error:
            if is_open:
                with suppress(Exception):  # the first error is raised, or the partitions have another owner
                    await self._clients.abort()
            self._clients.rewind(first_offsets(received))
            if not self._clients.is_rebalance(error):
                raise
            return PollBatch(self._policies)
        return batch

    async def _send(self, batch: PollBatch) -> bool:
        """Send the records that are not acknowledged. Returns false if one was refused: then others replace it."""
        for group in batch.unsent():
            errors = await self._clients.deliver([unsent.record for unsent in group])
            if not batch.settle(group, errors, self._clients):
                return False
        return True
