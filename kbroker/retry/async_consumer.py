"""AsyncRetryingConsumer: RetryingConsumer for aiokafka."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from kbroker.retry.batch import Policies, PollBatch, client_library, first_offsets
from kbroker.retry.policy import RetryPolicy
from kbroker.retry.records import OutgoingRecord

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
