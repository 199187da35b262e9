"""The metrics of `archive run`, served to Prometheus."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.options import IngestSummary

BY_TOPIC = ["topic"]


class IngestCollector(Collector):
    """Returns the totals of a run. Another thread changes them meanwhile."""

    def __init__(self, summary: IngestSummary) -> None:
        self._summary = summary

    def collect(self) -> Iterator[Metric]:
        summary, now_s = self._summary, time.time()
        lags = dict(summary.lags)
        yield _family(
            GaugeMetricFamily, "lag_records", "Offsets in the log that are not archived.",
            {topic: lag.records for topic, lag in lags.items()},
        )  # fmt: skip
        yield _family(
            GaugeMetricFamily, "lag_seconds", "Time since the archive had all records of the topic; 0 if it has them.",
            {topic: now_s - lag.complete_s if lag.records else 0 for topic, lag in lags.items()},
        )  # fmt: skip
        yield _family(
            GaugeMetricFamily, "last_commit_timestamp_seconds", "When records of the topic were last archived.",
            dict(summary.commits_s),
        )  # fmt: skip
        yield _family(CounterMetricFamily, "records", "Archived records.", dict(summary.records))
        yield _family(
            CounterMetricFamily, "dead_letters", "Records in tables of dead letters.", dict(summary.dead_letters)
        )
        lost = {topic: sum(gap.end - gap.start for gap in gaps) for topic, gaps in list(summary.gaps.items())}
        yield _family(CounterMetricFamily, "lost_offsets", "Offsets deleted before they could be archived.", lost)
        yield CounterMetricFamily("kbroker_archive_batches", "Batches with new offsets.", summary.batches)
        yield CounterMetricFamily("kbroker_archive_file_bytes", "Bytes of the written data files.", summary.file_bytes)
        yield CounterMetricFamily("kbroker_archive_errors", "Batches that failed and were repeated.", summary.errors)


def _family(kind: Any, name: str, text: str, values: Mapping[str, float]) -> Metric:
    family: Metric = kind(f"kbroker_archive_{name}", text, labels=BY_TOPIC)
    for topic, value in sorted(values.items()):
        family.add_metric([topic], value)  # type: ignore[attr-defined]
    return family


@contextmanager
def _serve(summary: IngestSummary, host: str, port: int) -> Iterator[None]:
    registry = CollectorRegistry()
    registry.register(IngestCollector(summary))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise PipelineError(f"--metrics {host}:{port}: {error.strerror or error}") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serve_metrics(summary: IngestSummary, address: tuple[str, int] | None) -> Any:
    """Return a context in which the metrics are at http://HOST:PORT/metrics; without an address they are not served."""
    return nullcontext() if address is None else _serve(summary, *address)
