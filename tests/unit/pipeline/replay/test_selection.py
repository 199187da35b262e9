"""Which files a selection can be in, what is known of it without reading them, and where records go."""

import os

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, OffsetRange, PartitionStats, TopicInfo
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import groups
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.groups import Committed, blocks, chosen, offset_of
from kbroker.pipeline.replay.job import Rows
from kbroker.pipeline.replay.routing import Routing, spread, target_names
from kbroker.pipeline.replay.selection import Selection, limits, offset_range, pruned, wanted_parts, whole
from kbroker.pipeline.replay.target import batch_bytes, refusals, wanted, warnings
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import append, created


def part(partition=0, first=0, last=99, from_ms=1000, to_ms=2000):
    return PartitionStats(partition, first, last, last - first + 1, 10, from_ms, to_ms, 0)


def file(name, *parts, topic="t"):
    return DataFile(f"topic={topic}/date=2026-01-01/{name}.parquet", topic, "2026-01-01", 1, "", parts)


FILES = [
    file("a", part(0, 0, 99, 1000, 2000)),
    file("b", part(0, 100, 199, 2000, 3000)),
    file("c", part(1, 0, 49, 1500, 2500), part(2, 0, 9, 5000, 5000)),
    file("d", part(0, 0, 9), topic="other"),
]
STATE = ArchiveState(
    files={one.path: one for one in FILES},
    covered={
        TopicPartition("t", 0): (OffsetRange(0, 200),),
        TopicPartition("t", 1): (OffsetRange(0, 20), OffsetRange(30, 50)),
        TopicPartition("t", 2): (OffsetRange(0, 10),),
    },
)
UPTO = limits(STATE, ["t"])


@pytest.mark.timeout(30)
def test_a_replay_begins_only_with_files_as_large_as_committed(tmp_path):
    archive = created(LocalStorage(str(tmp_path)))
    files = [append(archive) for _ in range(3)]
    state = archive.state()
    rows = Rows(None, archive, state, Selection(("t",)), limits(state, ["t"]), Routing({"t": "t"}, {"t": 1}), False)
    rows.require_files()
    odd = tmp_path / files[1].path
    for damage, told in (
        (lambda: odd.write_bytes(b""), f"has 0 bytes instead of {files[1].size}; `kbroker archive verify` reports"),
        (lambda: (odd.unlink(), os.mkfifo(odd)), "is a FIFO"),
        (odd.unlink, "no such file"),
    ):
        damage()
        with pytest.raises(PipelineError, match=f"{files[1].path}: {told}"):
            rows.require_files()


def names(**selection):
    topics = selection.pop("topics", ("t",))
    found = pruned(STATE, Selection(topics, **selection), limits(STATE, topics))
    return "".join(one.path[-len("a.parquet")] for one in found)


def test_files_that_cannot_match_are_not_read():
    assert UPTO == {"t": {0: 200, 1: 50, 2: 10}}
    assert names() == "abc"
    assert names(from_ms=2001) == "bc"
    assert names(until_ms=2000) == "ac"
    assert names(until_ms=1000) == ""
    assert names(from_ms=2501, until_ms=5000) == "b"
    assert names(partitions=(0,)) == "ab"
    assert names(partitions=(2,)) == "c"
    assert names(offsets=((0, 100, 101),)) == "b"
    assert names(offsets=((0, 50, None),)) == "ab"
    assert names(offsets=((0, 99, 100), (1, 49, 60))) == "ac"
    assert names(offsets=((1, 50, 60),)) == ""
    assert names(offsets=((0, 0, None),), partitions=(1,)) == ""
    assert names(key="k") == "abc"


def test_what_came_after_the_plan_is_no_part_of_it():
    upto = {"t": {0: 100, 1: 50, 2: 10}}
    assert [one.path[-9] for one in pruned(STATE, Selection(("t",)), upto)] == ["a", "c"]
    assert not whole(part(0, 50, 149), Selection(("t",)), 100)
    assert whole(part(0, 50, 99), Selection(("t",)), 100)


def test_a_part_is_whole_when_every_row_is_selected():
    def is_whole(**selection):
        one = part(0, 10, 20, 1000, 2000)
        return whole(one, Selection(("t",), **selection), 100)

    assert is_whole()
    assert is_whole(from_ms=1000, until_ms=2001)
    assert not is_whole(from_ms=1001)
    assert not is_whole(until_ms=2000)
    assert is_whole(offsets=((0, 10, 21),))
    assert not is_whole(offsets=((0, 10, 20),))
    assert not is_whole(offsets=((0, 11, None),))
    assert not is_whole(key="k")
    assert not is_whole(key_regex="k")
    assert not is_whole(headers=(("a", None),))
    assert [p.partition for p in wanted_parts(FILES[2], Selection(("t",), until_ms=3000), UPTO)] == [1]


def test_ranges_of_offsets_are_read():
    assert offset_range("3:10-20") == (3, 10, 20)
    assert offset_range("0:10-") == (0, 10, None)
    assert offset_range("0:-5") == (0, 0, 5)
    for text in ("10-20", "0:20-10", "0:5-5", "0:-", "x:1-2", "0:1-2-3", ""):
        with pytest.raises(PipelineError):
            offset_range(text)


def test_records_go_to_their_own_partition_or_by_key():
    kept = Routing({"a": "x", "b": "y"}, {"x": 3, "y": 2})
    assert kept.targets == [Target("x", 0), Target("x", 1), Target("x", 2), Target("y", 0), Target("y", 1)]
    assert [*kept.fed_by(TopicPartition("b", 1))] == [4]
    kept.check([TopicPartition("a", 2), TopicPartition("b", 1)])
    with pytest.raises(PipelineError, match="topic y has 2 partitions, but records of b-2"):
        kept.check([TopicPartition("b", 2)])
    assert not kept.merges([TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)])
    merged = Routing(target_names(["a", "b"], "all", None), {"all": 2})
    assert merged.merges([TopicPartition("a", 1), TopicPartition("b", 1)])
    assert not merged.merges([TopicPartition("a", 0), TopicPartition("b", 1)])
    keyed = Routing({"a": "x"}, {"x": 3}, by_key=True)
    assert [*keyed.fed_by(TopicPartition("a", 7))] == [0, 1, 2]
    assert keyed.merges([TopicPartition("a", 0), TopicPartition("a", 1)])
    assert not keyed.merges([TopicPartition("a", 0)])
    assert target_names(["a"], None, "copy-") == {"a": "copy-a"}
    assert target_names(["a"], None, None) == {"a": "a"}


def test_targets_are_spread_by_what_they_have_to_send():
    assert spread({0: 10, 1: 1, 2: 9, 3: 1}, 2) == {0: 0, 2: 1, 1: 1, 3: 0}
    assert set(spread(dict.fromkeys(range(7), 5), 3).values()) == {0, 1, 2}


def test_groups_that_the_archive_knows():
    archived = {"g": {"t": {1: 5, 0: 3}, "u": {0: 1}}, "h": {"u": {0: 9}}}
    mine = [Committed("g", TopicPartition("t", 0), 3), Committed("g", TopicPartition("t", 1), 5)]
    assert chosen(archived, ["g"], ["t"]) == mine
    assert chosen(archived, [groups.ALL], ["t"]) == mine
    with pytest.raises(PipelineError, match="no offsets of group h"):
        chosen(archived, ["h"], ["t"])


def test_positions_become_offsets():
    assert offset_of(5, start=100, count=10, placed=None) == 105
    assert offset_of(99, start=100, count=10, placed=None) == 110
    # others have written between the replay's batches of 4 and 6 records
    between = blocks([(100, 0, 4), (107, 4, 6)], start=100, at_most=10)
    assert between == [(0, 100, 4), (4, 107, 6)]
    assert offset_of(3, 100, 10, between) == 103
    assert offset_of(4, 100, 10, between) == 107
    assert offset_of(10, 100, 10, between) == 113
    assert offset_of(0, 100, 0, []) == 100


def test_topics_that_would_not_keep_timestamps_are_told():
    now = 10_000_000
    assert refusals("t", {}, 0, now, now) == []
    assert "time of their arrival" in refusals("t", {"message.timestamp.type": "LogAppendTime"}, 0, 0, now)[0]
    bounds = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"}
    assert len(refusals("t", bounds, now - 1001, now + 1001, now)) == 2
    assert refusals("t", bounds, now - 1000, now + 1000, now) == []
    assert warnings("t", {"retention.ms": "1000"}, now - 1001, now)
    assert not warnings("t", {"retention.ms": "-1"}, 0, now)
    assert not warnings("t", {"retention.ms": "1000", "cleanup.policy": "compact"}, 0, now)


def test_a_new_topic_is_like_the_archived_one():
    configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": "5"}
    state = ArchiveState(topics={"t": TopicInfo("", 4, configs), "u": TopicInfo("", 6, {"segment.ms": "9"})})
    made = wanted(state, ["t"], 2, {"retention.ms": "-1"})
    assert (made.partitions, made.configs) == (4, {"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
    assert wanted(state, ["t", "u"], 9, {}) == type(made)(9, {"message.timestamp.type": "CreateTime"})
    assert batch_bytes([{"max.message.bytes": "1000"}, {}], 5000, 100) == 900
    assert batch_bytes([{}], 5000, 100) == 5000
