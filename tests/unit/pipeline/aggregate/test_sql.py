"""The SQL that is generated from the definition of an aggregate."""

from dataclasses import replace

from kbroker.pipeline.aggregate.definition import GroupKey
from kbroker.pipeline.aggregate.sql import (
    aggregate_columns,
    message_columns,
    problem_column,
    record_columns,
    result_columns,
    source_columns,
)
from tests.unit.support.aggregates import FULL, PLAIN


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
