"""All metric families (families.txt). `python -m kbroker.exporter.families > docs/metrics.md` generates their page.

The names with kafka_ are those of Kafka's JMX metrics with the usual rules of the Prometheus JMX exporter, and those of
kafka_exporter (topics, offsets, consumer groups). Metrics that Kafka does not have begin with kbroker_. process_* and
python_* come from prometheus_client.
"""

from pathlib import Path
from typing import NamedTuple


class Family(NamedTuple):
    """`kind`: counter, gauge or histogram. `labels`: their names, separated by commas.

    `help`: for the page of a scrape, and docs/metrics.md.
    """

    name: str
    kind: str
    labels: str
    help: str


def _read_families() -> tuple[Family, ...]:
    """Read the table: a family in each line."""
    lines = Path(__file__).with_name("families.txt").read_text().splitlines()
    return tuple(Family(*(cell.strip() for cell in line.split("|"))) for line in lines)


FAMILIES = _read_families()
BY_NAME = {family.name: family for family in FAMILIES}

_END = "\nRead on: [operations.md](operations.md#monitoring) says which of them to alert on.\n"
_HEAD = """# Metrics

`kbroker start --metrics HOST:PORT` (broker config `kbroker.metrics.listener`) serves these metrics at `/metrics` in the
text format of Prometheus, and a health check at `/healthz`:

```console
$ kbroker start --metrics 127.0.0.1:9308
$ curl -s http://127.0.0.1:9308/metrics
```

The names with `kafka_` are those that Grafana dashboards for Kafka use: Kafka's JMX metrics with the usual rules of the
Prometheus JMX exporter, and kafka_exporter (`kafka_brokers`, `kafka_topic_*`, `kafka_consumergroup_*`). Where Kafka has
percentiles in milliseconds (`..._totaltimems{quantile}`) there is a histogram in seconds. Counters start at 0 with the
process. `process_*` and `python_*` come from prometheus_client.

In a cluster scrape every broker. `kafka_topic_partition_*` of a partition come from its leader only, and
`kafka_consumergroup_*` of a group from its coordinator, so sums over all brokers are right. The lag of a group in a
partition is known where its coordinator has a replica of the partition.

This page is generated: `python -m kbroker.exporter.families > docs/metrics.md`.

| name | type | labels | meaning |
|---|---|---|---|
"""


def render_document() -> str:
    """Return docs/metrics.md."""
    rows = [f"| `{family.name}` | {family.kind} | {family.labels} | {family.help} |\n" for family in FAMILIES]
    return "".join([_HEAD, *rows, _END])


if __name__ == "__main__":
    print(render_document(), end="")
