"""Groups of a replay: committed once, whatever is killed and however often it is gone on with."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import groups, plan, run
from kbroker.pipeline.replay.draft import World
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.groups import Committed, Placed, bounding
from kbroker.pipeline.replay.job import Limit
from kbroker.pipeline.replay.plan import Plan, Request, TargetTopic
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.storage.local import LocalStorage

SOURCE = TopicPartition("a", 0)
PLAN = Plan(
    "abc123", 1000, "archive-id", 17, Request(Selection(("a",)), {"a": "x"}, groups=("g", "h"), group_prefix="new-"),
    {"a": {0: 5}}, "cluster-id", {"x": TargetTopic("00ff", (0,), (True,), (5,))}, False, 999, 4711, 0,
    (Committed("g", SOURCE, 3), Committed("h", SOURCE, 4)),
)  # fmt: skip


class Groups:
    """Stands in for `Cluster`: keeps what is committed, and refuses it for some."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, Mapping[TopicPartition, int]]] = []
        self.refused: set[str] = set()

    def __call__(self, _: str) -> "Groups":
        return self

    def __enter__(self) -> "Groups":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if group in self.refused:
            raise PipelineError(f"{group} is refused")
        self.commits.append((group, offsets))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An archive's storage, and nothing else."""
    archive = SimpleNamespace(storage=LocalStorage(str(tmp_path)))
    return World(cast(Any, None), cast(Any, archive), cast(Any, None), "", lambda _: None)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """All is sent, and a group stands where it had committed."""
    made = Groups()
    monkeypatch.setattr(run, "Cluster", made)
    monkeypatch.setattr(
        run.job, "places", lambda rows, found, counts: [Placed(one.group, Target("x", 0), one.offset) for one in found]
    )
    monkeypatch.setattr(
        run.groups, "mapped", lambda _b, _p, placed, _s, _c: {one.group: {one.target: one.position} for one in placed}
    )
    return made


def test_a_replay_that_is_done_commits_nothing_when_it_is_gone_on_with(world, cluster):
    plan.create(world.archive.storage, PLAN)
    done = plan.finish(world.archive.storage, PLAN, 2000)
    notes: list[str] = []
    summary = run.go_on(replace(world, note=notes.append), done, Limit())
    assert (summary.rows, summary.sent, summary.groups) == (5, 0, {})
    assert cluster.commits == []
    assert notes == ["replay abc123 was finished before: nothing is sent or committed"]


def test_a_group_is_committed_once_even_if_the_next_one_fails(world, cluster):
    storage = world.archive.storage
    plan.create(storage, PLAN)
    cluster.refused = {"new-h"}
    with pytest.raises(PipelineError, match="new-h is refused"):
        run._restored(world, PLAN, cast(Any, None))
    assert cluster.commits == [("new-g", {TopicPartition("x", 0): 3})]
    left = plan.load(storage, PLAN.id)
    assert (left.groups, left.done_ms) == (["new-h"], None)
    assert plan.unfinished(storage, PLAN.request, "cluster-id") == left
    cluster.refused = set()
    made, placed = run._restored(world, left, cast(Any, None))
    assert [group for group, _ in cluster.commits] == ["new-g", "new-h"]
    assert placed == {"new-h": {Target("x", 0): 4}}
    assert made.groups == plan.load(storage, PLAN.id).groups == []


def test_a_group_that_has_members_by_now_is_refused_before_anything_is_sent(world, cluster, monkeypatch):
    """There is no broker here that anything could be sent to."""
    monkeypatch.setattr(world.archive, "state", lambda: None, raising=False)
    monkeypatch.setattr(run, "_check_same", lambda *_: None)
    monkeypatch.setattr(run, "_settings", lambda *_: None)
    monkeypatch.setattr(groups, "_state", lambda _, group: "Stable" if group == "new-h" else "Empty")
    with pytest.raises(PipelineError, match=r"group new-h has members \(it is Stable\)"):
        run.go_on(world, PLAN, Limit())
    assert cluster.commits == []


def test_partitions_without_an_offset_bound_those_that_they_meet():
    a0, a1, b0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    sources = [a0, a1, b0]
    of_g, of_h = Committed("g", a0, 7), Committed("h", b0, 3)
    apart = Routing({"a": "x", "b": "y"}, {"x": 2, "y": 1})
    assert bounding([of_g, of_h], sources, apart) == [of_g, of_h]
    by_key = Routing({"a": "x", "b": "y"}, {"x": 2, "y": 1}, by_key=True)
    assert bounding([of_g, of_h], sources, by_key) == [of_g, of_h, Committed("g", a1, 0)]
    # a topic that the group never had anything of counts as well
    merged = Routing({"a": "x", "b": "x"}, {"x": 2})
    both = {Committed("g", b0, 0), Committed("h", a0, 0)}
    assert set(bounding([of_g, of_h], sources, merged)) == {of_g, of_h, *both}
    assert bounding([of_g, Committed("g", b0, 1)], sources, merged) == [of_g, Committed("g", b0, 1)]


def test_a_partition_without_a_counterpart_feeds_none_of_another_topic():
    routing = Routing({"a": "x", "b": "y"}, {"x": 1, "y": 2})
    assert [list(routing.fed_by(TopicPartition("a", number))) for number in (0, 1, 9)] == [[0], [], []]
    assert [list(routing.fed_by(TopicPartition("b", number))) for number in (0, 1, 9)] == [[1], [2], []]
