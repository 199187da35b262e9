"""The parts that both retrying consumers share: policies by topic, and the outcome of the records of one poll."""

from collections.abc import Iterable, Sequence
from typing import Any

from kbroker.retry.policy import PolicyError, RetryPolicy
from kbroker.retry.records import OutgoingRecord, ReceivedRecord, after_failure


class Policies:
    """The policies of a consumer, by the topics that it reads. `not_retryable`: exceptions that are not retried."""

    def __init__(
        self, policies: RetryPolicy | Sequence[RetryPolicy], not_retryable: tuple[type[BaseException], ...]
    ) -> None:
        self._by_topic: dict[str, RetryPolicy] = {}
        self._not_retryable = not_retryable
        for policy in [policies] if isinstance(policies, RetryPolicy) else policies:
            for topic in policy.topics:
                if topic in self._by_topic:
                    raise PolicyError(f"two retry policies for topic {topic}")
                self._by_topic[topic] = policy

    def after_failure(self, record: ReceivedRecord, error: Exception) -> OutgoingRecord:
        """Return the record for the retry topic or the dead-letter topic. Raises `error` if the topic has no policy."""
        policy = self._by_topic.get(record.topic)
        if policy is None:
            raise error
        return after_failure(policy, record, error, is_retryable=not isinstance(error, self._not_retryable))


class PollBatch:
    """The outcome of one poll: the records to produce, the offsets to commit, and counts."""

    def __init__(self) -> None:
        self.outgoing: list[OutgoingRecord] = []
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.succeeded = 0
        self.failed = 0

    def add_success(self, record: ReceivedRecord, outputs: Iterable[OutgoingRecord]) -> None:
        self.outgoing += outputs
        self.succeeded += 1
        self._advance(record)

    def add_failure(self, record: ReceivedRecord, replacement: OutgoingRecord) -> None:
        self.outgoing.append(replacement)
        self.failed += 1
        self._advance(record)

    def _advance(self, record: ReceivedRecord) -> None:
        self.next_offsets[record.topic, record.partition] = record.offset + 1


def first_offsets(records: Iterable[ReceivedRecord]) -> list[tuple[str, int, int]]:
    """Return (topic, partition, first offset) for each partition."""
    first: dict[tuple[str, int], int] = {}
    for record in records:
        first.setdefault((record.topic, record.partition), record.offset)
    return [(topic, partition, offset) for (topic, partition), offset in first.items()]


def client_library(consumer: Any) -> str:
    """Return the name of the library that a consumer comes from. Raises TypeError for an unknown one."""
    for kind in type(consumer).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in ("kafka", "confluent_kafka", "cimpl", "aiokafka"):
            return "confluent_kafka" if library == "cimpl" else library
    raise TypeError(f"expected a consumer of kafka-python, confluent-kafka or aiokafka, not {type(consumer).__name__}")
