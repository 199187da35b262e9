"""Definitions of aggregates, and their SQL."""

from dataclasses import replace

import pytest

from kbroker.pipeline.aggregate.definition import (
    GroupKey,
    aggregate_columns,
    canonical_path,
    check_definition,
    default_compute,
    message_columns,
    parse_group_key,
    parse_percentile,
    problem_column,
    record_columns,
    result_columns,
    source_columns,
    split_names,
)
from kbroker.pipeline.errors import PipelineError
from tests.unit.support.aggregates import FULL, HOUR, PLAIN


@pytest.mark.parametrize(
    ("text", "name", "source"),
    [
        ("key", "key", "key"),
        ("topic", "topic", "topic"),
        ("$.carrier", "carrier", "$.carrier"),
        ("$.a.b.c", "c", "$.a.b.c"),
        ("user=$.user.name", "user", "$.user.name"),
        ("shard=partition", "shard", "partition"),
        ("$.list[0]", "list_0", "$.list[0]"),
        ("$[3]", "field_3", "$[3]"),
        ("$['first name']", "first_name", "$['first name']"),
        ("$['a=b']", "a_b", "$['a=b']"),
        ("$['2nd']", "_2nd", "$['2nd']"),
    ],
)
def test_a_group_key_is_named_by_its_last_step_or_by_the_user(text, name, source):
    assert parse_group_key(text) == GroupKey(name, source)
    check_definition(replace(PLAIN, keys=(parse_group_key(text),)))


@pytest.mark.parametrize("text", ["value", "", "carrier", "x=", "name=other"])
def test_an_unknown_group_key_is_an_error(text):
    with pytest.raises(PipelineError, match="expected key, topic, partition or a field of the value"):
        parse_group_key(text)


def test_canonical_path():
    assert canonical_path("$.a['b c'][0].d-e") == "$['a']['b c'][0]['d-e']"


@pytest.mark.parametrize(
    "path", ["$", "a", "$.", "$..a", "$.a[", "$.a[x]", "$['a'b']", "$.a\\", "$['a\"']", "$.1", "$[-1]"]
)
def test_an_invalid_path_is_an_error(path):
    with pytest.raises(PipelineError, match="is not a JSON path"):
        canonical_path(path)


def test_percentile_names():
    assert [parse_percentile(name) for name in ("p0", "p50", "p99.9", "p100")] == [0, 50, 99.9, 100]
    assert FULL.percentiles == {"p50": 0.5, "p99.9": 0.999}
    for name in ("p101", "p", "median", "p5x", "p99."):
        with pytest.raises(PipelineError, match=r"cannot compute .*: expected count, bytes, values"):
            parse_percentile(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topics": ()}, "at least one topic"),
        ({"window_ms": 0, "slide_ms": 0}, "must be at least 1 ms"),
        ({"slide_ms": 0}, "must be at least 1 ms"),
        ({"slide_ms": HOUR + 1}, "the slide must not be longer than the window"),
        ({"slide_ms": 1}, "more than 1,000 windows"),
        ({"watermark_ms": 400_000_000_000}, "at most ten years"),
        ({"compute": ()}, "there is nothing to compute"),
        ({"compute": ("sum",)}, "sum requires the field of the value"),
        ({"compute": ("p50",)}, "p50 requires the field of the value"),
        ({"compute": ("count", "median")}, "cannot compute 'median'"),
        ({"value": "amount"}, "'amount' is not a JSON path"),
        ({"time": "at"}, "'at' is not a JSON path"),
        ({"keys": (GroupKey("count", "$.count"),)}, "two columns of the result would have the name count"),
        ({"keys": (GroupKey("Date", "$.d"),)}, "two columns of the result would have the name date"),
        ({"keys": (GroupKey("a", "$.a"), GroupKey("A", "$.b"))}, "two columns of the result would have the name a"),
        ({"keys": (GroupKey("a b", "$.a"),)}, "'a b' is not a valid column name"),
        ({"keys": (GroupKey("__time", "$.__time"),)}, "'__time' is not a valid column name"),
        ({"value": "$.v", "compute": ("p1.5", "p1.5")}, "two columns of the result would have the name p1_5"),
    ],
)
def test_a_definition_that_cannot_be_computed_is_an_error(changes, message):
    with pytest.raises(PipelineError, match=message):
        check_definition(replace(PLAIN, **changes))


def test_default_compute_and_split_names():
    assert default_compute("") == ("count", "bytes")
    assert default_compute("$.v") == ("count", "bytes", "sum", "min", "max", "avg")
    assert split_names(["count, p50", "count,,sum"]) == ("count", "p50", "sum")


def test_json_is_parsed_only_if_a_field_is_used():
    keyed = replace(PLAIN, keys=(GroupKey("key", "key"),))
    assert not keyed.needs_json
    assert not any("parse_json" in text for text in source_columns(keyed))
    assert "not_json" not in problem_column(keyed)
    assert FULL.needs_json
    assert any("try_parse_json" in text for text in source_columns(FULL))


def test_sql_of_a_definition():
    assert "make_valid_utf8(CAST(key AS STRING)) AS `key`" in record_columns(FULL)
    assert "try_variant_get(__document, '$[\\'shop\\']', 'string') AS `shop`" in record_columns(FULL)
    assert aggregate_columns(FULL) == [
        "count(*) AS `count`",
        "sum(__number) AS `sum`",
        "percentile(__number, array(0.5D, 0.999D)) AS __percentiles",
    ]
    assert aggregate_columns(replace(FULL, approximate=True))[-1].startswith(
        "percentile_approx(__number, array(0.5D, 0.999D), "
    )
    assert result_columns(FULL)[2:] == [
        "`key`", "`shop`", "`count`", "`sum`", "__percentiles[0] AS `p50`", "__percentiles[1] AS `p99_9`",
    ]  # fmt: skip
    key, value = message_columns(FULL)
    assert "`shop`" in key
    assert "`count`" not in key
    assert "`p99_9`" in value
