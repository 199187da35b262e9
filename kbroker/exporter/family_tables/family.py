"""A row of the tables of metric families."""

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
# The labels of partitions.
TP = "topic, partition"


class Family(NamedTuple):
    """`labels`: their names, separated by commas. `help`: for the page of a scrape, and docs/metrics.md."""

    name: str
    kind: str
    labels: str
    help: str
