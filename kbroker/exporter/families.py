"""All metric families (families.txt), and the text of one scrape in the text format 0.0.4 of Prometheus.

`python -m kbroker.exporter.families > docs/metrics.md` generates the page of the families.

The names with kafka_ are those of Kafka's JMX metrics with the usual rules of the Prometheus JMX exporter, and those of
kafka_exporter (topics, offsets, consumer groups). Metrics that Kafka does not have begin with kbroker_. process_* and
python_* come from prometheus_client.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker.runtime.metrics import LATENCY_BOUNDS_NS, Histogram


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
text format of Prometheus, and checks at `/healthz` and `/livez`:

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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Joining the lines of a part takes at most a millisecond.
LINES_PER_PART = 1000

_BOUNDS = tuple(f"{bound / 1e9:.4g}" for bound in LATENCY_BOUNDS_NS)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels(**values: object) -> str:
    """Return labels as in a line of the format: `{name="value",...}`."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


class MetricsPage:
    """Collects samples by family, since the format requires the samples of a family to be contiguous."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {name: [] for name in BY_NAME}
        # By name of what clients report: the kind, and the lines. No name is in the table of families.
        self.reported: dict[str, tuple[str, list[str]]] = {}

    def add(self, name: str, value: float, labelled: str = "") -> None:
        """Add a sample. Raises KeyError for a name that is in no table of families."""
        self.lines[name].append(f"{name}{labelled} {value}")

    def add_reported(self, kind: str, name: str, value: float, labelled: str) -> None:
        """Add a sample that a client has reported. If two clients differ in its kind, that of the first is shown."""
        self.reported.setdefault(name, (kind, []))[1].append(f"{name}{labelled} {value}")

    def add_histogram(self, name: str, histogram: Histogram, **labelled: object) -> None:
        """Add durations, in seconds."""
        lines = self.lines[name]
        inner = labels(**labelled)[1:-1]
        start = f"{name}_bucket{{{inner}{',' if inner else ''}le="
        count = 0
        for bound, size in zip(_BOUNDS, histogram.buckets, strict=False):
            count += size
            lines.append(f'{start}"{bound}"}} {count}')
        count += sum(histogram.buckets[len(_BOUNDS) :])
        lines.append(f'{start}"+Inf"}} {count}')
        outer = f"{{{inner}}}" if inner else ""
        lines.append(f"{name}_sum{outer} {histogram.total_ns / 1e9}")
        lines.append(f"{name}_count{outer} {count}")

    def parts(self) -> Iterator[bytes]:
        """Yield the text in parts, without families that have no samples. Removes the samples that were yielded."""
        for name, lines in self.lines.items():
            if lines:
                yield from _family_parts(name, BY_NAME[name].kind, BY_NAME[name].help, lines)
        for name, (kind, lines) in self.reported.items():
            yield from _family_parts(name, kind, "Reported by clients (KIP-714).", lines)


def _family_parts(name: str, kind: str, text: str, lines: list[str]) -> Iterator[bytes]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()
    for first in range(0, len(lines), LINES_PER_PART):
        # A group id may contain characters that UTF-8 cannot encode.
        yield ("\n".join(lines[first : first + LINES_PER_PART]) + "\n").encode(errors="replace")
    # Freeing all lines at the end would block the event loop.
    lines.clear()


if __name__ == "__main__":
    print(render_document(), end="")
