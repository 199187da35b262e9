"""Leader epochs of archived offsets, and logs that have diverged."""

from collections.abc import Iterable, Mapping

import pytest

from kbroker.archive.topic_state import LeaderEpoch, TopicState
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.batch_plan import BatchRange
from kbroker.pipeline.ingest.leader_epochs import last_epochs, read_new_epochs, require_same_logs, with_epochs
from kbroker.pipeline.leader_epochs import EpochEnd

TP = TopicPartition("t", 0)


class Log:
    """A log with leader epochs, which answers as Kafka's LeaderEpochFileCache does."""

    def __init__(self, epochs: Mapping[int, int], end: int) -> None:
        self.starts = dict(epochs)
        self.end = end
        self.requests = 0

    def leader_epochs(self, names: Iterable[str]) -> dict[TopicPartition, int]:
        return {TP: max(self.starts)}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        self.requests += bool(epochs)
        return {tp: self._end(epoch) for tp, epoch in epochs.items()}

    def _end(self, epoch: int) -> EpochEnd:
        if epoch == max(self.starts):
            return EpochEnd(epoch, self.end)
        higher = [start for each, start in self.starts.items() if each > epoch]
        if not higher:
            return EpochEnd(-1, -1)
        return EpochEnd(max((each for each in self.starts if each <= epoch), default=epoch), min(higher))


def new_epochs(log: Log, start: int, end: int, known: LeaderEpoch | None = None) -> list[tuple[int, int]]:
    found = read_new_epochs(log, [BatchRange(TP, start, start, end)], {TP: known} if known else {})
    return [(each.epoch, each.start) for each in found[TP]]


def test_epochs_are_followed_down_to_the_start_of_the_range() -> None:
    log = Log({0: 0, 3: 10, 4: 25, 9: 60}, 100)
    assert new_epochs(log, 0, 100) == [(0, 0), (3, 10), (4, 25), (9, 60)]
    assert new_epochs(log, 30, 100) == [(4, 25), (9, 60)]
    assert new_epochs(log, 0, 60) == [(0, 0), (3, 10), (4, 25)]


def test_known_epochs_are_not_requested() -> None:
    log = Log({0: 0, 3: 10, 4: 25}, 100)
    assert new_epochs(log, 50, 100, LeaderEpoch(4, 25)) == []
    assert log.requests == 0
    assert new_epochs(log, 5, 100, LeaderEpoch(0, 0)) == [(3, 10), (4, 25)]


def test_a_log_whose_first_epochs_were_deleted() -> None:
    log = Log({700: 50}, 100)
    assert new_epochs(log, 50, 100) == [(700, 50)]
    assert new_epochs(log, 0, 100) == [(700, 50)]
    assert log.requests < 5


def test_a_leader_that_does_not_know_its_epoch_is_asked_again_later() -> None:
    log = Log({0: 0}, 100)
    log.leader_epochs = lambda names: {TP: 2}  # type: ignore[method-assign]
    assert new_epochs(log, 0, 100) == []


def test_epochs_are_added_to_a_state() -> None:
    state = TopicState(leader_epochs={0: (LeaderEpoch(0, 0),), 1: (LeaderEpoch(2, 0),)})
    assert with_epochs(state, {0: [LeaderEpoch(3, 10)], 1: []}) == {
        0: (LeaderEpoch(0, 0), LeaderEpoch(3, 10)),
        1: (LeaderEpoch(2, 0),),
    }
    assert last_epochs({"t": state})[TP] == LeaderEpoch(0, 0)


@pytest.mark.parametrize("end", [EpochEnd(4, 100), EpochEnd(4, 60), EpochEnd(-1, -1)])
def test_a_log_that_has_the_archived_epoch_is_the_same(end: EpochEnd) -> None:
    require_same_logs({TP: LeaderEpoch(4, 25)}, {TP: 60}, {TP: end})


@pytest.mark.parametrize("end", [EpochEnd(4, 59), EpochEnd(3, 25), EpochEnd(0, 10)])
def test_a_diverged_log_is_rejected(end: EpochEnd) -> None:
    with pytest.raises(PipelineError, match="t-0 has diverged from its archive, which has records of leader epoch 4"):
        require_same_logs({TP: LeaderEpoch(4, 25)}, {TP: 60}, {TP: end})
