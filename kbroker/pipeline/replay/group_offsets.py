"""Committed offsets of consumer groups, translated to the target topics.

After a replay a group continues at the first replayed record that it had not committed, in each target partition that
gets records of its source partitions. A position is a record's index among the replay's records for its target.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.archive.topic_state import GroupOffsets
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import describe_group
from kbroker.client.offsets import LATEST, list_offsets
from kbroker.client.requests import check
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.batch_encoder import sequence_at
from kbroker.pipeline.replay.producer import BatchSpan, TargetStart, position_after_sequence, producer_batches
from kbroker.pipeline.replay.routing import Routing
from protocol.errors import ErrorCode

ALL_GROUPS = "*"
DEAD = "Dead"
_STATES_WITHOUT_MEMBERS = frozenset({"Empty", DEAD})


class CommittedOffset(NamedTuple):
    """A group's committed offset in a source partition."""

    group: str
    source: TopicPartition
    offset: int


class GroupPosition(NamedTuple):
    """The position of the first record that a group has not committed, in a target partition."""

    group: str
    target: TopicPartition
    position: int


class ReplayedSpan(NamedTuple):
    """Consecutive records of the replay at consecutive offsets of a target."""

    position: int
    offset: int
    record_count: int


def select_committed(archived: Mapping[str, GroupOffsets], groups: Sequence[str]) -> list[CommittedOffset]:
    """Return the offsets of some groups, or of ALL_GROUPS, of those that are archived with each topic.

    Raises PipelineError for a named group without any.
    """
    selected = []
    for group in sorted(set().union(*archived.values())) if ALL_GROUPS in groups else groups:
        offsets = [
            CommittedOffset(group, TopicPartition(topic, partition), offset)
            for topic, by_group in archived.items()
            for partition, offset in sorted(by_group.get(group, {}).items())
        ]
        if not offsets and ALL_GROUPS not in groups:
            raise PipelineError(f"the archive has no offsets of group {group} in these topics")
        selected += offsets
    return selected


def with_uncommitted_sources(
    committed: Sequence[CommittedOffset], sources: Iterable[TopicPartition], routing: Routing
) -> list[CommittedOffset]:
    """Add offset 0 for source partitions without a committed offset that share a target with a committed one.

    Otherwise the group would skip their records.
    """
    targets: dict[str, set[int]] = {}
    for offset in committed:
        targets.setdefault(offset.group, set()).update(routing.targets_of(offset.source))
    known = {(offset.group, offset.source) for offset in committed}
    missing = [
        CommittedOffset(group, source, 0)
        for source in sources
        for group, numbers in targets.items()
        if (group, source) not in known and not numbers.isdisjoint(routing.targets_of(source))
    ]
    return [*committed, *missing]


def replayed_spans(batches: Sequence[BatchSpan], start_offset: int, count: int) -> list[ReplayedSpan]:
    """Return the spans of the replay's batches in a target that received `count` records of the replay."""
    spans = []
    for batch in batches:
        max_records = min(count, batch.base_offset - start_offset + batch.record_count)
        end = position_after_sequence(sequence_at(batch.base_sequence + batch.record_count - 1), max_records)
        spans.append(ReplayedSpan(end - batch.record_count, batch.base_offset, batch.record_count))
    return spans


def offset_at_position(position: int, start_offset: int, count: int, spans: Sequence[ReplayedSpan] | None) -> int:
    """Return the offset of the record at a position; for the position after the last record, the offset after it.

    `spans`: the replay's records in the target if other producers write to it as well; None if the target has only the
    replay's records after `start_offset`.
    """
    if spans is None:
        return start_offset + min(position, count)
    for span in spans:
        if span.position <= position < span.position + span.record_count:
            return span.offset + position - span.position
    return max((span.offset + span.record_count for span in spans), default=start_offset)


def offsets_to_commit(
    cluster: ClusterClient,
    producer_id: int,
    positions: Iterable[GroupPosition],
    starts: Mapping[TopicPartition, TargetStart],
    counts: Mapping[TopicPartition, int],
) -> dict[str, dict[TopicPartition, int]]:
    """Return the offsets to commit by group, when all records are sent. Raises OSError, BrokerError."""
    positions = list(positions)
    ends = list_offsets(cluster, {position.target: LATEST for position in positions})
    spans: dict[TopicPartition, list[ReplayedSpan] | None] = {}
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for group, target, position in positions:
        start, count = starts[target].offset, counts.get(target, 0)
        if target not in spans:
            spans[target] = None
            if ends[target] - start != count:
                batches = producer_batches(cluster, producer_id, target, start, ends[target])
                spans[target] = replayed_spans(batches, start, count)
        offsets.setdefault(group, {})[target] = offset_at_position(position, start, count, spans[target])
    return offsets


def require_no_members(cluster: ClusterClient, groups: Iterable[str]) -> None:
    """Raise PipelineError for a group with members: they would commit offsets meanwhile."""
    for group in groups:
        state = _group_state(cluster, group)
        if state not in _STATES_WITHOUT_MEMBERS:
            raise PipelineError(
                f"group {group} has members (state {state}): stop them, or restore the group under another name "
                f"with --group-prefix"
            )


def _group_state(cluster: ClusterClient, group: str) -> str:
    found = describe_group(cluster, group)
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return DEAD
    check(found.error_code, f"group {group}", found.error_message)
    return found.state
