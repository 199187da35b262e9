"""Requests about pending records to the leaders of their partitions, which change while they are sent."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kbroker.cli.cluster.plans.broker_message import BrokerRequest
from kbroker.cli.common.client import chunks, error_code_text, partition_leaders, read_again, send_request
from kbroker.cli.common.errors import CliError
from kbroker.cli.records.formats import bytes_to_json
from protocol.errors import ErrorCode
from protocol.messages.k10011_delayed_records import DelayedRecord, DelayedRecordsRequest, DelayedRecordsResponse

DELAY_ENABLE = "kbroker.delay.enable"
LIST, CANCEL, DELIVER = range(3)
# The most records of a list, and offsets of a change, that a request may have.
PAGE_RECORDS, CHANGED_RECORDS = 10_000, 1000
RETRY_FOR_S, RETRY_EVERY_S = 30.0, 0.2
# The leader changes, or the partition waits for its replicas.
RETRIABLE_ERRORS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


def knows_delay(client: Any, topic: str) -> bool:
    """Return whether topics have the config of delayed delivery; true if no broker responds.

    Brokers of Apache Kafka do not have it, and close the connection at the request.
    """
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import KafkaError

    try:
        described = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    except KafkaError:
        return True
    return any(DELAY_ENABLE in rows for topics in described.values() for rows in topics.values())


class WaitingRecord(NamedTuple):
    """A pending record, and its partition."""

    partition: int
    record: DelayedRecord

    def to_json(self, include_payload: bool) -> dict[str, Any]:
        record = self.record
        fields = {
            "partition": self.partition,
            "offset": record.offset,
            "due_ms": record.due_ms,
            "timestamp_ms": record.timestamp_ms,
            **bytes_to_json("key", record.key),
            "value_size": None if record.value_size < 0 else record.value_size,
            "headers": [
                {"key": header.name.decode(errors="replace"), **bytes_to_json("value", header.value)}
                for header in record.headers
            ],
        }
        return fields | bytes_to_json("value", record.value) if include_payload else fields


class DelayedTopic:
    """A topic with delayed delivery. `clock` and `sleep` are in seconds."""

    def __init__(
        self,
        client: Any,
        topic: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._topic = topic
        self._clock, self._sleep = clock, sleep
        self._leaders = self._find_leaders()

    def _find_leaders(self) -> dict[int, int]:
        found = read_again(lambda: partition_leaders(self._client, [self._topic]))
        return {index: leader for (_, index), leader in found.items()}

    def partitions(self, partition: int | None) -> list[int]:
        """Return the partitions of the topic, or the one that was asked for. Raises CliError if it has none such."""
        if partition is None:
            return sorted(self._leaders)
        if partition not in self._leaders:
            raise CliError(f"topic {self._topic} has no partition {partition}: it has {len(self._leaders)}")
        return [partition]

    def counts(self, partition: int) -> DelayedRecordsResponse:
        """Return a response with the counts of a partition."""
        return self._send(partition, DelayedRecordsRequest(operation=LIST, max_records=0))

    def pending(self, partition: int, page_records: int, include_payload: bool = False) -> Iterator[WaitingRecord]:
        """Yield the pending records of a partition in the order in which they are due."""
        after_due_ms = after_offset = -1
        # The offsets of all records with the last due time: retention may move them between two pages.
        offsets: set[int] = set()
        while True:
            request = DelayedRecordsRequest(
                operation=LIST,
                after_due_ms=after_due_ms,
                after_offset=after_offset,
                max_records=min(page_records, PAGE_RECORDS),
                include_payload=include_payload,
            )
            response = self._send(partition, request)
            for record in response.records:
                if record.due_ms != after_due_ms:
                    offsets.clear()
                if record.moved_from not in offsets:
                    yield WaitingRecord(partition, record)
                offsets.add(record.offset)
                after_due_ms, after_offset = record.due_ms, record.offset
            if not response.has_more or not response.records:
                return

    def change(self, operation: int, partition: int, offsets: Sequence[int]) -> Iterator[tuple[int, str | None]]:
        """Cancel or deliver records. Yields each offset, with an error text or None."""
        for some in chunks(sorted(set(offsets)), CHANGED_RECORDS):
            response = self._send(partition, DelayedRecordsRequest(operation=operation, offsets=list(some)))
            for result in response.results:
                yield (
                    result.offset,
                    error_code_text(result.error_code, result.error_message) if result.error_code else None,
                )

    def _send(self, partition: int, request: DelayedRecordsRequest) -> DelayedRecordsResponse:
        """Send to the leader, for at most RETRY_FOR_S if that changes. Raises CliError."""
        from kafka.errors import KafkaConnectionError, NodeNotReadyError

        request.topic_name, request.partition_index = self._topic, partition
        deadline = self._clock() + RETRY_FOR_S
        code, message = int(ErrorCode.LEADER_NOT_AVAILABLE), None
        while True:
            leader = self._leaders.get(partition, -1)
            if leader >= 0:
                try:
                    response: DelayedRecordsResponse = send_request(
                        self._client, BrokerRequest(request, DelayedRecordsResponse), leader
                    )
                except (KafkaConnectionError, NodeNotReadyError, CliError):
                    # It has died, or is no longer among the brokers that clients know.
                    if self._clock() >= deadline:
                        raise
                    if not knows_delay(self._client, self._topic):
                        raise CliError(f"{self._topic}: these brokers have no delayed delivery") from None
                else:
                    code, message = response.error_code, response.error_message
                    if not code:
                        return response
            if (code and code not in RETRIABLE_ERRORS) or self._clock() >= deadline:
                raise CliError(f"{self._topic}-{partition}: {error_code_text(code, message)}")
            self._sleep(RETRY_EVERY_S)
            self._leaders |= self._find_leaders()
