"""Random requests for transactional ids, with the results of Apache Kafka 4.4.0 (transaction_lines.py)."""

import pytest

from kbroker.common import TopicPartition
from protocol.errors import ErrorCode
from tests.unit.support.transaction_coordinator import Harness, set_epoch
from tests.unit.support.transaction_lines import LineRunner, Producer, stories

STORIES = dict(stories())


class Coordinator:
    """The transactional id "t" of a harness, as transaction_lines.Target."""

    def __init__(self, h: Harness) -> None:
        self._h = h

    def init(self, timeout_ms: int, producer: Producer) -> Producer | ErrorCode:
        return self._h.init(timeout_ms=timeout_ms, producer=producer)  # type: ignore[no-any-return]

    def bump(self, epoch: int) -> Producer:
        """Set the epoch directly, since the requests for thousands of epochs would take too long."""
        set_epoch(self._h, epoch, self._h.entry().metadata.state)
        return self._h.entry().metadata.producer_id, epoch

    def add(self, producer: Producer, partition: int, version: int) -> ErrorCode:
        return self._h.add(producer, TopicPartition("a", partition), version=version) or ErrorCode.NONE

    def verify(self, producer: Producer, partition: int) -> ErrorCode:
        errors = self._h.verify(producer, TopicPartition("a", partition))
        return errors if isinstance(errors, ErrorCode) else errors[TopicPartition("a", partition)]

    def end(self, producer: Producer, committed: bool, version: int) -> Producer | ErrorCode:
        return self._h.end(producer, committed, version=version)  # type: ignore[no-any-return]

    def describe(self) -> tuple[str, Producer, int, list[int]]:
        metadata = self._h.transactions.describe("t")
        partitions = sorted(tp.partition for tp in metadata.partitions)
        producer = metadata.producer_id, metadata.producer_epoch
        return metadata.state.state_name, producer, metadata.timeout_ms, partitions


@pytest.mark.parametrize("name", STORIES)
def test_results_are_those_of_kafka(name: str):
    harness = Harness()
    runner = LineRunner(Coordinator(harness))
    try:
        for line in STORIES[name]:
            assert runner.run(line.partition(" -> ")[0]) == line
    finally:
        harness.close()


def test_the_stories_have_every_result():
    results = {line.partition(" -> ")[2].split()[0] for lines in STORIES.values() for line in lines}
    states = {line.partition(" ; ")[2].split()[0] for lines in STORIES.values() for line in lines}
    assert {
        "NONE", "CONCURRENT_TRANSACTIONS", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE", "PRODUCER_FENCED",
        "TRANSACTION_ABORTABLE",
    } <= results  # fmt: skip
    assert states == {"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"}
