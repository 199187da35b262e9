"""Offsets that groups had committed, as positions in what was replayed.

A group goes on with the first replayed record that it had not yet committed, in each target partition that records of
its source partitions go to.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import GroupOffsets
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.connection import Brokers, RefusedError
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.positions import LATEST, Start, batches, offset, position_after
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.target import settled
from protocol.errors import ErrorCode
from protocol.messages.k15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse

ALL = "*"
# Groups that nobody is a member of; Dead is one that there is not.
_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})


class Committed(NamedTuple):
    """What a group had committed for one source partition."""

    group: str
    source: TopicPartition
    offset: int


class Placed(NamedTuple):
    """A group's place in a target: so many records of the replay come before it."""

    group: str
    target: Target
    position: int


def chosen(archived: GroupOffsets, wanted: Sequence[str], topics: Iterable[str]) -> list[Committed]:
    """The offsets of these groups, ALL for every one, in these topics.

    Raises PipelineError for a group that has none in the archive.
    """
    names = sorted(archived) if ALL in wanted else list(wanted)
    found = []
    for group in names:
        offsets = archived.get(group, {})
        mine = [
            Committed(group, TopicPartition(topic, int(partition)), committed)
            for topic in topics
            for partition, committed in sorted(offsets.get(topic, {}).items())
        ]
        if not mine and ALL not in wanted:
            raise PipelineError(f"the archive has no offsets of group {group} in these topics")
        found += mine
    return found


def bounding(committed: Sequence[Committed], sources: Iterable[TopicPartition], routing: Routing) -> list[Committed]:
    """What was committed, and offset 0 of source partitions that a group has no offset of, where their records can
    meet those of one that it has: none of theirs may be skipped."""
    targets: dict[str, set[int]] = {}
    for one in committed:
        targets.setdefault(one.group, set()).update(routing.fed_by(one.source))
    known = {(one.group, one.source) for one in committed}
    missing = [
        Committed(group, source, 0)
        for source in sources
        for group, numbers in targets.items()
        if (group, source) not in known and not numbers.isdisjoint(routing.fed_by(source))
    ]
    return [*committed, *missing]


def blocks(found: Sequence[tuple[int, int, int]], start: int, at_most: int) -> list[tuple[int, int, int]]:
    """(position, offset, records) of the replay's batches, from (base offset, base sequence, records) of each."""
    result = []
    for base_offset, base_sequence, count in found:
        last = position_after((base_sequence + count - 1) & 0x7FFFFFFF, min(at_most, base_offset - start + count))
        result.append((last - count, base_offset, count))
    return result


def offset_of(position: int, start: int, count: int, placed: Sequence[tuple[int, int, int]] | None) -> int:
    """The offset of the replay's record at a position, and after the last one the offset that follows it.

    `placed`: the blocks of a target that others write to as well; None where the replay's records are all that came
    after `start`.
    """
    if placed is None:
        return start + min(position, count)
    for first, base_offset, records in placed:
        if first <= position < first + records:
            return base_offset + position - first
    return max((base_offset + records for _, base_offset, records in placed), default=start)


def mapped(
    brokers: Brokers,
    producer_id: int,
    placed: Iterable[Placed],
    starts: Mapping[Target, Start],
    counts: Mapping[Target, int],
) -> dict[str, dict[Target, int]]:
    """The offsets to commit, by group, once everything is replayed. Raises OSError, RefusedError."""
    known: dict[Target, list[tuple[int, int, int]] | None] = {}
    found: dict[str, dict[Target, int]] = {}
    for group, target, position in placed:
        start, count = starts[target].offset, counts.get(target, 0)
        if target not in known:
            end = offset(brokers, target, LATEST)
            alone = end - start == count
            known[target] = None if alone else blocks(batches(brokers, producer_id, target, start, end), start, count)
        found.setdefault(group, {})[target] = offset_of(position, start, count, known[target])
    return found


def check_without_members(brokers: Brokers, groups: Iterable[str]) -> None:
    """Raises PipelineError for a group that has members, for their commits would go on meanwhile."""
    for group in groups:
        state = settled(partial(_state, brokers, group), brokers)
        if state not in _WITHOUT_MEMBERS:
            raise PipelineError(
                f"group {group} has members (it is {state}): stop them, or restore it under another name "
                f"with --group-prefix"
            )


def _state(brokers: Brokers, group: str) -> str:
    request = DescribeGroupsRequest(groups=[group])
    answer = brokers.coordinator(group).ask(request, DescribeGroupsResponse).groups[0]
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return "Dead"
    if answer.error_code:
        raise RefusedError(answer.error_code, f"group {group}", answer.error_message)
    return answer.group_state
