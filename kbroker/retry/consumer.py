"""Process records, and send those that fail to retry and dead-letter topics.

The first is for kafka-python and confluent-kafka, the second for aiokafka.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any

from kbroker.retry.batch import Policies, PollBatch, client_library, first_offsets
from kbroker.retry.policy import RetryPolicy, retry_topic_name
from kbroker.retry.records import OutgoingRecord

# Called with a record of the client. It may return records, which are produced if it succeeds.
Handler = Callable[[Any], Iterable[OutgoingRecord] | None]


def _poll(
    clients: Any, policies: Policies, handler: Callable[[Any], Any], timeout_s: float, exactly_once: bool
) -> Generator[Any, Any, PollBatch]:
    """Process the records of one poll.

    Yields what the clients and the handler return, and is sent the results of that: the same, or those of awaiting it.
    """
    records = yield clients.poll(timeout_s)
    batch = PollBatch(policies)
    if not records:
        return batch
    received = [clients.received(record) for record in records]
    is_open = False
    try:
        for native, record in zip(records, received, strict=True):
            try:
                outputs = tuple((yield handler(native)) or ())
            except Exception as error:
                batch.add_failure(record, error)
            else:
                batch.add_success(record, outputs)
        is_sent = False
        while not is_sent:
            if exactly_once:
                yield clients.begin()
                is_open = True
            # If a record was refused, others replace it.
            is_sent = True
            for group in batch.unsent():
                errors = yield clients.deliver([unsent.record for unsent in group])
                is_sent = batch.settle(group, errors, clients)
                if not is_sent:
                    break
            if is_open and not is_sent:
                yield clients.abort()
                is_open = False
                batch.forget_acknowledgements()
        yield clients.commit_transaction(batch.next_offsets) if is_open else clients.commit(batch.next_offsets)
    except BaseException as error:
        if is_open:
            with suppress(Exception):  # the first error is raised, or the partitions have another owner
                yield clients.abort()
        clients.rewind(first_offsets(received))
        if not clients.is_rebalance(error):
            raise
        return PollBatch(policies)
    return batch


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
        steps = _poll(self._clients, self._policies, handler, timeout_s, self._exactly_once)
        result = None
        while True:
            try:
                result = steps.send(result)
            except StopIteration as end:
                batch: PollBatch = end.value
                return batch


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
        """Process the records of one poll, as RetryingConsumer.poll does."""
        steps = _poll(self._clients, self._policies, handler, timeout_s, self._exactly_once)
        try:
            step = steps.send(None)
            while True:
                try:
                    result = await step
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            batch: PollBatch = end.value
            return batch


# The policies that `kbroker retry create` has stored in the configs of retry topics.

TIMEOUT_S = 30.0


def read_policy(admin: Any, topic: str, group: str, retry_topic: str = "") -> RetryPolicy:
    """Return the policy of a topic and a group, with an admin client of kafka-python or confluent-kafka.

    Raises PolicyError if the retry topic stores none, and the client's error if it does not exist.
    """
    name = retry_topic or retry_topic_name(topic, group)
    if client_library(admin) == "kafka":
        from kafka.admin import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        described = admin.describe_configs([resource], config_filter="all")
        rows = next(iter(described.values()))[name]
        return RetryPolicy.from_configs(name, {key: row["value"] for key, row in rows.items()})
    from confluent_kafka import admin as confluent_admin

    resource = confluent_admin.ConfigResource("TOPIC", name)
    entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    return RetryPolicy.from_configs(name, {key: entry.value for key, entry in entries.items()})


async def read_policy_async(admin: Any, topic: str, group: str, retry_topic: str = "") -> RetryPolicy:
    """Return the policy of a topic and a group, with an AIOKafkaAdminClient. Raises as `read_policy` does."""
    from aiokafka.admin import config_resource
    from aiokafka.errors import for_code

    name = retry_topic or retry_topic_name(topic, group)
    resource = config_resource.ConfigResource(config_resource.ConfigResourceType.TOPIC, name)
    [response] = await admin.describe_configs([resource])
    code, message, _, _, rows = response.resources[0]
    if code:
        raise for_code(code)(message)
    return RetryPolicy.from_configs(name, {row[0]: row[1] for row in rows})
