"""The leader epochs of archived offsets, and whether a log is still the one that was archived.

A log that was truncated and written again under the same topic id (an unclean leader election, a broker that lost its
disk) has other records at the same offsets. Its leader epochs show it: the epoch of the last archived record then ends
before that record.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kbroker.archive.topic_state import LeaderEpoch, TopicState
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.batch_plan import BatchRange
from kbroker.pipeline.leader_epochs import EpochEnd


class EpochSource(Protocol):
    """What is asked of a ClusterAdmin."""

    def leader_epochs(self, names: Iterable[str]) -> dict[TopicPartition, int]: ...
    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]: ...


def last_epochs(states: Mapping[str, TopicState]) -> dict[TopicPartition, LeaderEpoch]:
    """Return the last leader epoch that the archive has of each partition."""
    return {
        TopicPartition(topic, partition): epochs[-1]
        for topic, state in states.items()
        for partition, epochs in state.leader_epochs.items()
        if epochs
    }


def require_same_logs(
    archived: Mapping[TopicPartition, LeaderEpoch],
    resume: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, EpochEnd],
) -> None:
    """Raise PipelineError if a log has other records at archived offsets. `ends`: of the archived last epochs."""
    for tp, (epoch, end_offset) in sorted(ends.items()):
        last, resume_offset = archived[tp].epoch, resume.get(tp, 0)
        if epoch < 0 or resume_offset <= archived[tp].start or (epoch == last and end_offset >= resume_offset):
            continue
        raise PipelineError(
            f"{tp} has diverged from its archive, which has records of leader epoch {last} up to offset "
            f"{resume_offset - 1}: in the log epoch {epoch} ends at offset {end_offset}; records were lost and "
            f"others written in their place (an unclean leader election?): archive the topic into another directory"
        )


def read_new_epochs(
    cluster: EpochSource, ranges: Sequence[BatchRange], known: Mapping[TopicPartition, LeaderEpoch]
) -> dict[TopicPartition, list[LeaderEpoch]]:
    """Return the leader epochs of these offsets that are newer than the known ones, ascending.

    Sends no request for partitions whose leader has not changed. Epochs are followed from the newest one down to the
    start of the range.
    """
    by_tp = {each.tp: each for each in ranges}
    current = cluster.leader_epochs({tp.topic for tp in by_tp})
    found: dict[TopicPartition, list[LeaderEpoch]] = {tp: [] for tp in by_tp}
    following: dict[TopicPartition, int] = {}  # the epoch whose start is not known yet
    for tp in by_tp:
        epoch = current.get(tp, -1)
        if epoch >= 0 and (tp not in known or known[tp].epoch < epoch):
            following[tp] = epoch
    while following:
        ends = cluster.epoch_ends({tp: epoch - 1 for tp, epoch in following.items() if epoch > 0})
        unfinished, following = following, {}
        for tp, epoch in unfinished.items():
            previous = ends.get(tp, EpochEnd(-1, 0))
            if previous.end_offset < 0:  # the leader does not know it now
                found[tp].clear()
                continue
            is_first = bool(found[tp]) and found[tp][-1].start == previous.end_offset
            found[tp].append(LeaderEpoch(epoch, previous.end_offset))
            last_known = known[tp].epoch if tp in known else -1
            if previous.end_offset > by_tp[tp].read_from and previous.epoch > last_known and not is_first:
                following[tp] = previous.epoch
    return {tp: _within(epochs, by_tp[tp].end) for tp, epochs in found.items()}


def _within(epochs: Iterable[LeaderEpoch], end: int) -> list[LeaderEpoch]:
    """Return the epochs that begin below `end`, ascending; of several at one offset, only the last has records."""
    by_start: dict[int, LeaderEpoch] = {}
    for each in sorted(epochs):
        if each.start < end:
            by_start[each.start] = each
    return sorted(by_start.values())


def with_epochs(state: TopicState, added: Mapping[int, Sequence[LeaderEpoch]]) -> dict[int, tuple[LeaderEpoch, ...]]:
    """Return the leader epochs of a state and newer ones, by partition."""
    result = dict(state.leader_epochs)
    for partition, epochs in added.items():
        if epochs:
            result[partition] = (*result.get(partition, ()), *epochs)
    return result
