"""Plans of replays: written, read, found again, and told where they are damaged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import plan
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.groups import Committed
from kbroker.pipeline.replay.plan import Plan, Request, TargetTopic
from kbroker.pipeline.replay.positions import Start
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.storage.local import LocalStorage

SELECTION = Selection(("a", "b"), 5, None, ((0, 1, None), (2, 3, 4)), (0, 2), "k\udcff", None, (("h", None), ("i", "")))
REQUEST = Request(SELECTION, {"a": "x", "b": "x"}, True, False, True, "lz4", ("g",), "new-")
PLAN = Plan(
    "abc123", 1000, "archive-id", 17, REQUEST, {"a": {0: 5, 10: 7}, "b": {}}, "cluster-id",
    {"x": TargetTopic("00ff", (0, 9), (True, False), (3, 0))}, True, 999, 4711, 0,
    (Committed("g", TopicPartition("a", 0), 3),),
)  # fmt: skip


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def test_a_plan_is_read_as_it_was_written(storage):
    plan.create(storage, PLAN)
    assert plan.load(storage, "abc123") == PLAN
    done = plan.finish(storage, PLAN, 2000)
    assert plan.load(storage, "abc123") == done == replace(PLAN, done_ms=2000)


def test_two_that_begin_at_once_are_one(storage):
    assert plan.create(storage, PLAN) == PLAN
    second = replace(PLAN, created_ms=1001, producer_id=4712)
    assert plan.create(storage, second) == PLAN
    another = plan.create(storage, replace(second, request=replace(REQUEST, append=False)))
    assert another.id != PLAN.id
    plan.finish(storage, PLAN, 2000)
    assert plan.create(storage, second).id not in (PLAN.id, another.id)
    assert len(plan.plans(storage)) == 3


def test_where_a_replay_begins_names_it():
    topic = PLAN.targets["x"]
    ids = [
        plan.id_at(cluster, {name: replace(topic, **changes)})
        for cluster, name, changes in (
            ("c", "x", {}), ("d", "x", {}), ("c", "y", {}), ("c", "x", {"topic_id": "0100"}),
            ("c", "x", {"starts": (0, 10)}), ("c", "x", {"counts": (1, 1)}),
        )
    ]  # fmt: skip
    assert ids[0] == ids[-1]
    assert len(set(ids)) == 5
    assert all(one.isalnum() and len(one) == 12 for one in ids)


def test_what_a_plan_says():
    assert PLAN.rows == 3
    assert PLAN.counts() == {Target("x", 0): 3}
    assert PLAN.starts() == {Target("x", 0): Start(0, True), Target("x", 1): Start(9, False)}
    assert PLAN.routing.targets == [Target("x", 0), Target("x", 1)]
    assert PLAN.path == "_replays/abc123.json"


def test_the_same_request_finds_what_it_left_unfinished(storage):
    assert plan.unfinished(storage, REQUEST, "cluster-id") is None
    plan.create(storage, PLAN)
    later = replace(PLAN, id="def456", created_ms=2000)
    plan.create(storage, later)
    plan.create(storage, replace(PLAN, id="done", created_ms=3000, done_ms=4000))
    assert plan.unfinished(storage, REQUEST, "cluster-id") == later
    assert plan.unfinished(storage, REQUEST, "another") is None
    assert plan.unfinished(storage, replace(REQUEST, append=False), "cluster-id") is None
    assert plan.unfinished(storage, replace(REQUEST, selection=Selection(("a",))), "cluster-id") is None


def test_one_that_is_not_there_names_those_that_are(storage):
    with pytest.raises(PipelineError, match="knows no replay 'nope': none is unfinished"):
        plan.load(storage, "nope")
    plan.create(storage, PLAN)
    with pytest.raises(PipelineError, match="unfinished are abc123"):
        plan.load(storage, "nope")
    with pytest.raises(PipelineError, match="knows no replay"):
        plan.load(storage, "../_manifest/0")


@pytest.mark.parametrize("field", sorted(json.loads(PLAN.to_bytes())))
def test_a_damaged_plan_is_told(field):
    for damage in ("missing", None, "text", [1]):
        data = json.loads(PLAN.to_bytes())
        if damage == "missing":
            del data[field]
        elif field in ("id", "archive", "cluster") and isinstance(damage, str):
            continue
        else:
            data[field] = damage
        if field == "done_ms" and damage in ("missing", None):
            continue
        with pytest.raises(PipelineError, match="some/path"):
            plan.decoded(json.dumps(data).encode(), "some/path")


def test_what_is_no_plan_is_told():
    for data in (b"", b"{", b"[]", b"{}", b"\xff", b'{"version": 2}'):
        with pytest.raises(PipelineError, match="some/path"):
            plan.decoded(data, "some/path")
