"""Groups of a replay: where they continue in the target topics, and that each is committed once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.archive.archive import ArchiveSettings
from kbroker.archive.storage.local import LocalStorage
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import group_offsets, run
from kbroker.pipeline.replay.group_offsets import (
    ALL_GROUPS,
    CommittedOffset,
    GroupPosition,
    ReplayedSpan,
    offset_at_position,
    replayed_spans,
    select_committed,
    with_uncommitted_sources,
)
from kbroker.pipeline.replay.plan import (
    ReplayPlan,
    ReplayRequest,
    TargetTopic,
    find_unfinished,
    load_plan,
    mark_finished,
    save_new,
)
from kbroker.pipeline.replay.preparation import ReplayContext
from kbroker.pipeline.replay.producer import BatchSpan
from kbroker.pipeline.replay.routing import Routing
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.replay.sending import SpeedLimit

SOURCE, TARGET = TopicPartition("a", 0), TopicPartition("x", 0)
REQUEST = ReplayRequest(Selection(("a",)), {"a": "x"}, groups=("g", "h"), group_prefix="new-")
PLAN = ReplayPlan(
    "abc123", 1000, "archive-id", REQUEST,
    {"a": {0: 5}}, "cluster-id", {"x": TargetTopic("00ff", (0,), (True,), (5,))}, False, 4711, 0,
    (CommittedOffset("g", SOURCE, 3), CommittedOffset("h", SOURCE, 4)),
)  # fmt: skip
# Groups continue where they had committed.
RECORDS: Any = SimpleNamespace(
    group_positions=lambda committed, counts: [GroupPosition(c.group, TARGET, c.offset) for c in committed]
)


class FakeAdmin:
    """Stands in for the admin client: records commits, and rejects those of some groups."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, Mapping[TopicPartition, int]]] = []
        self.rejected_groups: set[str] = set()

    def __call__(self, _: str) -> "FakeAdmin":
        return self

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if group in self.rejected_groups:
            raise PipelineError(f"{group} is rejected")
        self.commits.append((group, offsets))


@pytest.fixture
def context(tmp_path: Path) -> ReplayContext:
    """A context with nothing but an archive's storage."""
    archive = SimpleNamespace(settings=ArchiveSettings(PLAN.archive))
    storage = LocalStorage(str(tmp_path))
    return ReplayContext(cast(Any, None), cast(Any, archive), storage, cast(Any, None), "", lambda _: None)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(run, "ClusterAdmin", fake)
    monkeypatch.setattr(
        run, "offsets_to_commit", lambda _c, _p, positions, _s, _n: {p.group: {p.target: p.position} for p in positions}
    )
    return fake


def test_a_finished_replay_commits_nothing(context, admin):
    save_new(context.storage, PLAN)
    finished = mark_finished(context.storage, PLAN, 2000)
    notes: list[str] = []
    summary = run.execute_plan(replace(context, notify=notes.append), finished, SpeedLimit())
    assert (summary.plan.rows, summary.sent, summary.groups) == (5, 0, {})
    assert admin.commits == []
    assert notes == ["replay abc123 is already finished: nothing is sent or committed"]


def test_a_group_is_committed_once_even_if_the_next_one_fails(context, admin):
    storage = context.storage
    save_new(storage, PLAN)
    admin.rejected_groups = {"new-h"}
    with pytest.raises(PipelineError, match="new-h is rejected"):
        run._restore_groups(context, PLAN, RECORDS)
    assert admin.commits == [("new-g", {TARGET: 3})]
    stored = load_plan(storage, PLAN.id)
    assert (stored.remaining_groups, stored.done_ms) == (["new-h"], None)
    assert find_unfinished(storage, PLAN.request, "cluster-id") == stored
    admin.rejected_groups = set()
    plan, restored = run._restore_groups(context, stored, RECORDS)
    assert [group for group, _ in admin.commits] == ["new-g", "new-h"]
    assert restored == {"new-h": {TARGET: 4}}
    assert plan.remaining_groups == load_plan(storage, PLAN.id).remaining_groups == []


def test_a_group_with_members_is_rejected_before_anything_is_sent(context, admin, monkeypatch):
    """There is no broker here to send anything to."""
    monkeypatch.setattr(run, "read_topics", lambda *_: {})
    monkeypatch.setattr(run, "_require_same_targets", lambda *_: None)
    monkeypatch.setattr(run, "_send_settings", lambda *_: None)
    monkeypatch.setattr(group_offsets, "_group_state", lambda _, group: "Stable" if group == "new-h" else "Empty")
    with pytest.raises(PipelineError, match=r"group new-h has members \(state Stable\)"):
        run.execute_plan(context, PLAN, SpeedLimit())
    assert admin.commits == []


def test_archived_offsets_are_selected_by_group_and_topic():
    archived = {"t": {"g": {1: 5, 0: 3}}}
    of_g = [CommittedOffset("g", TopicPartition("t", 0), 3), CommittedOffset("g", TopicPartition("t", 1), 5)]
    assert select_committed(archived, ["g"]) == of_g
    assert select_committed(archived, [ALL_GROUPS]) == of_g
    with pytest.raises(PipelineError, match="no offsets of group h"):
        select_committed(archived, ["h"])


def test_sources_without_a_committed_offset_count_where_they_share_a_target():
    a0, a1, b0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
    sources = [a0, a1, b0]
    of_g, of_h = CommittedOffset("g", a0, 7), CommittedOffset("h", b0, 3)
    separate = Routing({"a": "x", "b": "y"}, {"x": 2, "y": 1})
    assert with_uncommitted_sources([of_g, of_h], sources, separate) == [of_g, of_h]
    by_key = Routing({"a": "x", "b": "y"}, {"x": 2, "y": 1}, by_key=True)
    assert with_uncommitted_sources([of_g, of_h], sources, by_key) == [of_g, of_h, CommittedOffset("g", a1, 0)]
    # including a topic that the group has never committed an offset of
    merged = Routing({"a": "x", "b": "x"}, {"x": 2})
    added = {CommittedOffset("g", b0, 0), CommittedOffset("h", a0, 0)}
    assert set(with_uncommitted_sources([of_g, of_h], sources, merged)) == {of_g, of_h, *added}
    of_both = [of_g, CommittedOffset("g", b0, 1)]
    assert with_uncommitted_sources(of_both, sources, merged) == of_both


def test_positions_become_offsets():
    assert offset_at_position(5, start_offset=100, count=10, spans=None) == 105
    assert offset_at_position(99, start_offset=100, count=10, spans=None) == 110
    # another producer has written between the replay's batches of 4 and 6 records
    spans = replayed_spans([BatchSpan(100, 0, 4), BatchSpan(107, 4, 6)], start_offset=100, count=10)
    assert spans == [ReplayedSpan(0, 100, 4), ReplayedSpan(4, 107, 6)]
    assert offset_at_position(3, 100, 10, spans) == 103
    assert offset_at_position(4, 100, 10, spans) == 107
    assert offset_at_position(10, 100, 10, spans) == 113
    assert offset_at_position(0, 100, 0, []) == 100
