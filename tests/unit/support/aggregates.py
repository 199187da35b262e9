"""Definitions of aggregates: with the defaults, and with group keys, a value, a time and percentiles."""

from dataclasses import replace

from kbroker.pipeline.aggregate.definition import AggregateDefinition, GroupKey

HOUR = 3_600_000
PLAIN = AggregateDefinition(topics=("orders",), window_ms=HOUR, slide_ms=HOUR)
FULL = replace(
    PLAIN,
    keys=(GroupKey("key", "key"), GroupKey("shop", "$.shop")),
    value="$.amount",
    time="$.at",
    compute=("count", "sum", "p50", "p99.9"),
)
