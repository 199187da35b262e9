"""The parts that both retrying consumers share: policies by topic, and the outcome of the records of one poll."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kbroker.retry.policy import PolicyError, RetryPolicy
from kbroker.retry.records import OutgoingRecord, ReceivedRecord, failure_records, is_pointer

# How often records are sent again because others were refused, without a refusal in between.
MAX_REPEATS = 5

log = logging.getLogger("kbroker.retry")


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

    def failure_records(self, record: ReceivedRecord, error: Exception) -> Iterator[OutgoingRecord]:
        """Return the records of which one is to be produced. Raises `error` if the topic has no policy."""
        policy = self._by_topic.get(record.topic)
        if policy is None:
            raise error
        return failure_records(policy, record, error, is_retryable=not isinstance(error, self._not_retryable))


class ErrorKinds(Protocol):
    """What an error of a client says about the record."""

    def is_refusal(self, error: Exception) -> bool:
        """Return whether the record was refused for its size or its content."""
        ...

    def is_consequence(self, error: Exception) -> bool:
        """Return whether the record was not sent because another one was refused before."""
        ...


@dataclass(slots=True, eq=False)
class RecordOutcome:
    """The records to produce for one received record.

    `replacements`: the records of which one is produced if processing has failed; None if it has succeeded. `is_alone`:
    each record has a request of its own, since a batch with others was refused.
    """

    received: ReceivedRecord
    outgoing: Sequence[OutgoingRecord]
    acknowledged: set[int] = field(default_factory=set)
    replacements: Iterator[OutgoingRecord] | None = None
    is_alone: bool = False


class Unsent(NamedTuple):
    outcome: RecordOutcome
    number: int

    @property
    def record(self) -> OutgoingRecord:
        return self.outcome.outgoing[self.number]


class PollBatch:
    """The outcome of one poll: the records to produce, the offsets to commit, and counts."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._outcomes: list[RecordOutcome] = []
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.succeeded = 0
        self.failed = 0
        self._repeats = 0

    @property
    def outgoing(self) -> list[OutgoingRecord]:
        return [record for outcome in self._outcomes for record in outcome.outgoing]

    def add_success(self, record: ReceivedRecord, outputs: Sequence[OutgoingRecord]) -> None:
        self._outcomes.append(RecordOutcome(record, outputs))
        self.succeeded += 1
        self._advance(record)

    def add_failure(self, record: ReceivedRecord, error: Exception) -> None:
        """Raises `error` if the record's topic has no policy."""
        outcome = RecordOutcome(record, ())
        self._fail(outcome, error)
        self._outcomes.append(outcome)
        self._advance(record)

    def _fail(self, outcome: RecordOutcome, error: Exception) -> None:
        outcome.replacements = self._policies.failure_records(outcome.received, error)
        outcome.outgoing = [next(outcome.replacements)]
        self.failed += 1

    def _advance(self, record: ReceivedRecord) -> None:
        self.next_offsets[record.topic, record.partition] = record.offset + 1

    # Sending.

    def unsent(self) -> list[list[Unsent]]:
        """Return the records that are not acknowledged. Those of a group may be in one batch of the producer."""
        together: list[Unsent] = []
        groups = [together]
        for outcome in self._outcomes:
            for number in range(len(outcome.outgoing)):
                if number in outcome.acknowledged:
                    continue
                if outcome.is_alone:
                    groups.append([Unsent(outcome, number)])
                else:
                    together.append(Unsent(outcome, number))
        return groups if together else groups[1:]

    def settle(self, group: Sequence[Unsent], errors: Sequence[Exception | None], kinds: ErrorKinds) -> bool:
        """Apply the results of a group; returns whether all of its records are acknowledged.

        Those that were refused are sent alone, then without parts. The others are sent again: they may have failed only
        because of the refused ones. Raises the first error of another kind, and that of a record of which nothing is
        left to omit.
        """
        refused: dict[RecordOutcome, Exception] = {}
        failed: Exception | None = None
        for (outcome, number), error in zip(group, errors, strict=True):
            if error is None:
                outcome.acknowledged.add(number)
            elif kinds.is_refusal(error):
                refused.setdefault(outcome, error)
            else:
                failed = failed or error
        if failed is not None and not refused:
            self._repeats += 1
            if self._repeats > MAX_REPEATS or not kinds.is_consequence(failed):
                raise failed
            return False
        if refused:
            self._repeats = 0
        for outcome, error in refused.items():
            if outcome.is_alone:
                self._replace(outcome, error)
            outcome.is_alone = True
        return not refused

    def _replace(self, outcome: RecordOutcome, error: Exception) -> None:
        received, refused = outcome.received, outcome.outgoing[0].topic
        outcome.acknowledged.clear()
        if outcome.replacements is None:
            # A record that the handler has returned.
            self.succeeded -= 1
            self._fail(outcome, error)
        else:
            replacement = next(outcome.replacements, None)
            if replacement is None:
                raise error
            outcome.outgoing = [replacement]
        [record] = outcome.outgoing
        log.warning(
            "the record at %s-%d offset %d cannot be sent to %s (%s): sending %s to %s",
            *(received.topic, received.partition, received.offset, refused, error),
            "a pointer to it" if is_pointer(record.headers) else "it",
            record.topic,
        )

    def forget_acknowledgements(self) -> None:
        """The transaction was aborted."""
        for outcome in self._outcomes:
            outcome.acknowledged.clear()


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
