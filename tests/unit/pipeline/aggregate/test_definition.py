"""What an aggregate is: groups and paths, what is refused, the note in its checkpoint, the expressions."""

import json
import os
from dataclasses import replace

import pytest

from kbroker.pipeline.aggregate import checkpoint_identity as aggregate_note
from kbroker.pipeline.aggregate import result_files as aggregate_files
from kbroker.pipeline.aggregate.definition import (
    AggregateDefinition,
    GroupKey,
    canonical_path,
    check_definition,
    default_compute,
    parse_group_key,
    parse_percentile,
    split_names,
)
from kbroker.pipeline.aggregate.sql import computed, document, message, problem, result, rows
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage

HOUR = 3_600_000
PLAIN = AggregateDefinition(topics=("orders",), window_ms=HOUR, slide_ms=HOUR)
FULL = replace(
    PLAIN,
    keys=(GroupKey("key", "key"), GroupKey("shop", "$.shop")),
    value="$.amount",
    time="$.at",
    compute=("count", "sum", "p50", "p99.9"),
)


@pytest.mark.parametrize(
    ("text", "name", "source"),
    [
        ("key", "key", "key"),
        ("topic", "topic", "topic"),
        ("$.carrier", "carrier", "$.carrier"),
        ("$.a.b.c", "c", "$.a.b.c"),
        ("who=$.user.name", "who", "$.user.name"),
        ("shard=partition", "shard", "partition"),
        ("$.list[0]", "list_0", "$.list[0]"),
        ("$[3]", "field_3", "$[3]"),
        ("$['first name']", "first_name", "$['first name']"),
        ("$['a=b']", "a_b", "$['a=b']"),
        ("$['2nd']", "_2nd", "$['2nd']"),
    ],
)
def test_a_group_is_named_by_its_last_step_or_by_the_user(text, name, source):
    assert parse_group_key(text) == GroupKey(name, source)
    check_definition(replace(PLAIN, keys=(parse_group_key(text),)))


@pytest.mark.parametrize("text", ["value", "", "carrier", "x=", "name=other"])
def test_a_group_of_something_else_is_refused(text):
    with pytest.raises(PipelineError, match="a group is made of key, topic, partition or a field"):
        parse_group_key(text)


def test_paths_are_given_to_spark_in_one_form():
    assert canonical_path("$.a['b c'][0].d-e") == "$['a']['b c'][0]['d-e']"


@pytest.mark.parametrize(
    "path", ["$", "a", "$.", "$..a", "$.a[", "$.a[x]", "$['a'b']", "$.a\\", "$['a\"']", "$.1", "$[-1]"]
)
def test_what_is_no_path_is_refused(path):
    with pytest.raises(PipelineError, match="is no path into JSON"):
        canonical_path(path)


def test_percentiles_are_named_as_people_write_them():
    assert [parse_percentile(name) for name in ("p0", "p50", "p99.9", "p100")] == [0, 50, 99.9, 100]
    assert FULL.percentiles == {"p50": 0.5, "p99.9": 0.999}
    for name in ("p101", "p", "median", "p5x", "p99."):
        with pytest.raises(PipelineError, match="is not known: count, bytes, values"):
            parse_percentile(name)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"topics": ()}, "at least one topic"),
        ({"window_ms": 0, "slide_ms": 0}, "are 1 ms or longer"),
        ({"slide_ms": 0}, "are 1 ms or longer"),
        ({"slide_ms": HOUR + 1}, "the slide is longer than the window"),
        ({"slide_ms": 1}, "more than 1,000 windows"),
        ({"watermark_ms": 400_000_000_000}, "at most ten years"),
        ({"compute": ()}, "nothing is to be computed"),
        ({"compute": ("sum",)}, "sum needs a value"),
        ({"compute": ("p50",)}, "p50 needs a value"),
        ({"compute": ("count", "median")}, "'median' is not known"),
        ({"value": "amount"}, "'amount' is no path"),
        ({"time": "at"}, "'at' is no path"),
        ({"keys": (GroupKey("count", "$.count"),)}, "two columns of the result would have the name count"),
        ({"keys": (GroupKey("Date", "$.d"),)}, "two columns of the result would have the name date"),
        ({"keys": (GroupKey("a", "$.a"), GroupKey("A", "$.b"))}, "two columns of the result would have the name a"),
        ({"keys": (GroupKey("a b", "$.a"),)}, "'a b' is no name of a column"),
        ({"keys": (GroupKey("__time", "$.__time"),)}, "'__time' is no name of a column"),
        ({"value": "$.v", "compute": ("p1.5", "p1.5")}, "two columns of the result would have the name p1_5"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_sentence(changes, refusal):
    with pytest.raises(PipelineError, match=refusal):
        check_definition(replace(PLAIN, **changes))


def test_what_is_computed_where_nobody_says():
    assert default_compute("") == ("count", "bytes")
    assert default_compute("$.v") == ("count", "bytes", "sum", "min", "max", "avg")
    assert split_names(["count, p50", "count,,sum"]) == ("count", "p50", "sum")


def test_a_definition_comes_back_from_json():
    assert AggregateDefinition.from_json(json.loads(json.dumps(FULL.as_json()))) == FULL
    with pytest.raises(PipelineError, match="cannot be read"):
        AggregateDefinition.from_json({"topics": []})


def test_json_is_read_only_where_something_of_it_is_wanted():
    keyed = replace(PLAIN, keys=(GroupKey("key", "key"),))
    assert not keyed.needs_json
    assert not any("parse_json" in text for text in document(keyed))
    assert "not_json" not in problem(keyed)
    assert FULL.needs_json
    assert any("try_parse_json" in text for text in document(FULL))


def test_expressions_of_a_definition():
    assert "make_valid_utf8(CAST(key AS STRING)) AS `key`" in rows(FULL)
    assert "try_variant_get(__document, '$[\\'shop\\']', 'string') AS `shop`" in rows(FULL)
    assert computed(FULL) == [
        "count(*) AS `count`",
        "sum(__number) AS `sum`",
        "percentile(__number, array(0.5D, 0.999D)) AS __percentiles",
    ]
    assert computed(replace(FULL, approximate=True))[-1].startswith("percentile_approx(__number, array(0.5D, 0.999D), ")
    assert result(FULL)[2:] == [
        "`key`", "`shop`", "`count`", "`sum`", "__percentiles[0] AS `p50`", "__percentiles[1] AS `p99_9`",
    ]  # fmt: skip
    key, value = message(FULL)
    assert "`shop`" in key
    assert "`count`" not in key
    assert "`p99_9`" in value


@pytest.fixture
def checkpoint(tmp_path):
    return LocalStorage(str(tmp_path / "checkpoint"))


def test_a_checkpoint_goes_on_with_the_same_aggregate(checkpoint):
    first = aggregate_note.claim_checkpoint(checkpoint, FULL, {"orders": "id1"}, "topic out")
    again = aggregate_note.claim_checkpoint(checkpoint, replace(FULL, watermark_ms=5), {"orders": "id1"}, "topic out")
    assert again == first


@pytest.mark.parametrize(
    ("changes", "ids", "target", "refusal"),
    [
        ({"window_ms": 2 * HOUR}, "id1", "topic out", r"is of another aggregate \(window_ms 7200000, before 3600000\)"),
        ({"value": ""}, "id1", "topic out", r"\(value none, before \$.amount\)"),
        ({"keys": ()}, "id1", "topic out", r"\(keys none, before key=key,shop=\$.shop\)"),
        ({}, "id1", "files", r"\(the target files, before topic out\)"),
        ({}, "id2", "topic out", "topic orders was deleted and created again"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(checkpoint, changes, ids, target, refusal):
    aggregate_note.claim_checkpoint(checkpoint, FULL, {"orders": "id1"}, "topic out")
    with pytest.raises(PipelineError, match=refusal):
        aggregate_note.claim_checkpoint(checkpoint, replace(FULL, **changes), {"orders": ids}, target)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b'{"format": "kbroker-aggregate"}', b"\xff"])
def test_a_damaged_note_is_told(checkpoint, damage):
    checkpoint.create(aggregate_note.FILE_NAME, damage)
    with pytest.raises(PipelineError, match=r"kbroker-aggregate\.json is damaged or of something else"):
        aggregate_note.claim_checkpoint(checkpoint, FULL, {}, "files")


def test_a_directory_of_something_else_is_no_checkpoint_and_no_place_for_results(checkpoint):
    checkpoint.create("offsets/0", b"v1")
    with pytest.raises(PipelineError, match="is not empty and holds no aggregate's checkpoint"):
        aggregate_note.claim_checkpoint(checkpoint, FULL, {}, "files")
    with pytest.raises(PipelineError, match="holds something else than results of an aggregate: offsets"):
        aggregate_files.claim_directory(checkpoint, "id")


def test_results_belong_to_one_checkpoint(tmp_path):
    storage = LocalStorage(str(tmp_path))
    storage.create("_checkpoint/kbroker-aggregate.json", b"")
    aggregate_files.claim_directory(storage, "mine")
    storage.create("_staging/date=2026-01-01/part.parquet", b"of a batch that was cut short")
    aggregate_files.claim_directory(storage, "mine")
    aggregate_files.remove_staging(storage)
    assert not storage.exists("_staging")
    with pytest.raises(PipelineError, match="goes on from another checkpoint"):
        aggregate_files.claim_directory(storage, "yours")


def test_a_checkpoint_is_of_one_run_at_a_time(checkpoint):
    aggregate_note.claim_checkpoint(checkpoint, FULL, {"orders": "id1"}, "topic out")
    with (
        aggregate_note.lock_checkpoint(checkpoint),
        pytest.raises(PipelineError, match="is in use: this aggregate runs already"),
        aggregate_note.lock_checkpoint(checkpoint),
    ):
        pass
    with aggregate_note.lock_checkpoint(checkpoint):
        pass


@pytest.mark.timeout(30)
def test_results_that_are_no_file_or_empty_are_not_taken_for_none(tmp_path):
    storage, path = LocalStorage(str(tmp_path)), aggregate_files.result_path("2024-02-29")
    storage.create(path, b"PAR1")
    aggregate_files._require_whole(storage, [path])
    storage.replace(path, b"")
    with pytest.raises(PipelineError, match="is empty, so earlier results are lost: aggregate again"):
        aggregate_files._require_whole(storage, [path])
    storage.delete(path)
    os.mkfifo(tmp_path / path)
    with pytest.raises(PipelineError, match="is a FIFO"):
        aggregate_files._require_whole(storage, [path])
