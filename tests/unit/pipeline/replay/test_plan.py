"""Plans of replays: written, read, found again, and reported when they are damaged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.archive.storage.local import LocalStorage
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.group_offsets import CommittedOffset
from kbroker.pipeline.replay.plan import (
    ReplayPlan,
    ReplayRequest,
    TargetTopic,
    decode_plan,
    derive_id,
    find_unfinished,
    list_plans,
    load_plan,
    mark_finished,
    save_new,
)
from kbroker.pipeline.replay.producer import TargetStart
from kbroker.pipeline.replay.selection import Selection

SELECTION = Selection(("a", "b"), 5, None, ((0, 1, None), (2, 3, 4)), (0, 2), "k\udcff", None, (("h", None), ("i", "")))
REQUEST = ReplayRequest(SELECTION, {"a": "x", "b": "x"}, True, False, True, "lz4", ("g",), "new-")
PLAN = ReplayPlan(
    "abc123", 1000, "archive-id", REQUEST, {"a": {0: 5, 10: 7}, "b": {}}, "cluster-id",
    {"x": TargetTopic("00ff", (0, 9), (True, False), (3, 0))}, True, 4711, 0,
    (CommittedOffset("g", TopicPartition("a", 0), 3),), commits={"a": 7, "b": 1}, missing={"a": 2, "b": 0},
)  # fmt: skip
# A plan as the first version of kbroker wrote it: archives keep such files.
VERSION_1 = {
    "version": 1,
    "id": "abc123",
    "created_ms": 1000,
    "archive": "archive-id",
    "state": 17,
    "request": {
        "selection": {
            "topics": ["a", "b"],
            "from_ms": 5,
            "until_ms": None,
            "offsets": [[0, 1, None], [2, 3, 4]],
            "partitions": [0, 2],
            "key": "k\udcff",
            "key_regex": None,
            "headers": [["h", None], ["i", ""]],
        },
        "names": {"a": "x", "b": "x"},
        "by_key": True,
        "origin_headers": False,
        "append": True,
        "compression": "lz4",
        "groups": ["g"],
        "group_prefix": "new-",
    },
    "limits": {"a": {"0": 5, "10": 7}, "b": {}},
    "cluster": "cluster-id",
    "targets": {"x": {"topic_id": "00ff", "starts": [0, 9], "empty": [True, False], "counts": [3, 0]}},
    "by_time": True,
    "size": 999,
    "producer_id": 4711,
    "producer_epoch": 0,
    "committed": [["g", ["a", 0], 3]],
    "done_ms": None,
}
OPTIONAL = ("commits", "missing")
X0, X1 = TopicPartition("x", 0), TopicPartition("x", 1)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def test_a_plan_is_read_as_it_was_written(storage):
    save_new(storage, PLAN)
    assert load_plan(storage, "abc123") == PLAN
    finished = mark_finished(storage, PLAN, 2000)
    assert load_plan(storage, "abc123") == finished == replace(PLAN, done_ms=2000)


def test_a_plan_of_format_version_1_is_read(storage):
    storage.create("_replays/abc123.json", json.dumps(VERSION_1).encode())
    assert load_plan(storage, "abc123") == replace(PLAN, commits={}, missing={})


def test_two_simultaneous_commands_are_one_replay(storage):
    assert save_new(storage, PLAN) == PLAN
    second = replace(PLAN, created_ms=1001, producer_id=4712)
    assert save_new(storage, second) == PLAN
    of_another_request = save_new(storage, replace(second, request=replace(REQUEST, append=False)))
    assert of_another_request.id != PLAN.id
    mark_finished(storage, PLAN, 2000)
    assert save_new(storage, second).id not in (PLAN.id, of_another_request.id)
    assert len(list_plans(storage)) == 3


def test_ids_are_derived_from_the_start_offsets():
    topic = PLAN.targets["x"]
    ids = [
        derive_id(cluster_id, {name: replace(topic, **changes)})
        for cluster_id, name, changes in (
            ("c", "x", {}), ("d", "x", {}), ("c", "y", {}), ("c", "x", {"topic_id": "0100"}),
            ("c", "x", {"starts": (0, 10)}), ("c", "x", {"counts": (1, 1)}),
        )
    ]  # fmt: skip
    assert ids[0] == ids[-1]
    assert len(set(ids)) == 5
    assert all(plan_id.isalnum() and len(plan_id) == 12 for plan_id in ids)


def test_properties_of_a_plan():
    assert PLAN.rows == 3
    assert PLAN.counts() == {X0: 3}
    assert PLAN.starts() == {X0: TargetStart(0, True), X1: TargetStart(9, False)}
    assert PLAN.routing.targets == [X0, X1]
    assert PLAN.path == "_replays/abc123.json"


def test_the_same_request_finds_its_latest_unfinished_plan(storage):
    assert find_unfinished(storage, REQUEST, "cluster-id") is None
    save_new(storage, PLAN)
    later = replace(PLAN, id="def456", created_ms=2000)
    save_new(storage, later)
    save_new(storage, replace(PLAN, id="done", created_ms=3000, done_ms=4000))
    assert find_unfinished(storage, REQUEST, "cluster-id") == later
    assert find_unfinished(storage, REQUEST, "another") is None
    assert find_unfinished(storage, replace(REQUEST, append=False), "cluster-id") is None
    assert find_unfinished(storage, replace(REQUEST, selection=Selection(("a",))), "cluster-id") is None


def test_an_unknown_id_is_an_error_that_lists_the_unfinished_replays(storage):
    with pytest.raises(PipelineError, match="has no replay 'nope'; none is unfinished"):
        load_plan(storage, "nope")
    save_new(storage, PLAN)
    with pytest.raises(PipelineError, match="unfinished replays: abc123"):
        load_plan(storage, "nope")
    with pytest.raises(PipelineError, match="has no replay"):
        load_plan(storage, "../_manifest/0")


@pytest.mark.parametrize("field", sorted(json.loads(PLAN.to_bytes())))
def test_a_damaged_field_is_an_error(field):
    for damage in ("missing", None, "text", [1]):
        data = json.loads(PLAN.to_bytes())
        if damage == "missing":
            del data[field]
        elif field in ("id", "archive", "cluster") and isinstance(damage, str):
            continue
        else:
            data[field] = damage
        if (field == "done_ms" and damage in ("missing", None)) or (field in OPTIONAL and damage == "missing"):
            continue
        with pytest.raises(PipelineError, match="some/path"):
            decode_plan(json.dumps(data).encode(), "some/path")


def test_text_that_is_not_a_plan_is_an_error():
    for data in (b"", b"{", b"[]", b"{}", b"\xff", b'{"version": 2}'):
        with pytest.raises(PipelineError, match="some/path"):
            decode_plan(data, "some/path")
