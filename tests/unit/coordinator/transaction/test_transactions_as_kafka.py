"""Random stories of transactional ids, with the answers of Apache Kafka 4.3.1 (transaction_lines.py)."""

import pytest

from kbroker.common import TopicPartition
from protocol.errors import ErrorCode
from tests.unit.support.transaction_coordinator import Harness
from tests.unit.support.transaction_lines import Teller, Who, stories

STORIES = dict(stories())


class Coordinator:
    """The transactional id "t" of a harness, as transaction_lines.Target."""

    def __init__(self, h: Harness) -> None:
        self._h = h

    def init(self, timeout_ms: int, who: Who) -> Who | ErrorCode:
        return self._h.init(timeout_ms=timeout_ms, producer=who)  # type: ignore[no-any-return]

    def bump(self, epoch: int) -> Who:
        """As if so many had been: that would take its time."""
        entry = self._h.transactions._owned.active("t").entries["t"]
        entry.transaction = entry.transaction._replace(producer_epoch=epoch)
        return entry.transaction.producer_id, epoch

    def add(self, who: Who, partition: int, version: int) -> ErrorCode:
        return self._h.add(who, TopicPartition("a", partition), version=version) or ErrorCode.NONE

    def verify(self, who: Who, partition: int) -> ErrorCode:
        told = self._h.verify(who, TopicPartition("a", partition))
        return told if isinstance(told, ErrorCode) else told[TopicPartition("a", partition)]

    def end(self, who: Who, committed: bool, version: int) -> Who | ErrorCode:
        return self._h.end(who, committed, version=version)  # type: ignore[no-any-return]

    def described(self) -> tuple[str, Who, int, list[int]]:
        found = self._h.transactions.describe("t")
        partitions = sorted(tp.partition for tp in found.partitions)
        return found.state.label, (found.producer_id, found.producer_epoch), found.timeout_ms, partitions


@pytest.mark.parametrize("name", STORIES)
def test_answers_are_kafkas(name: str):
    harness = Harness()
    teller = Teller(Coordinator(harness))
    try:
        for line in STORIES[name]:
            assert teller.tell(line.partition(" -> ")[0]) == line
    finally:
        harness.close()


def test_the_stories_have_every_answer():
    told = {line.partition(" -> ")[2].split()[0] for lines in STORIES.values() for line in lines}
    states = {line.partition(" ; ")[2].split()[0] for lines in STORIES.values() for line in lines}
    assert {
        "NONE", "CONCURRENT_TRANSACTIONS", "INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE", "PRODUCER_FENCED",
        "TRANSACTION_ABORTABLE",
    } <= told  # fmt: skip
    assert states == {"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"}
