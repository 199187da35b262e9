"""Sends the metrics of a broker by OTLP/HTTP, with the environment variables of OpenTelemetry (OTEL_EXPORTER_OTLP_*).

They are those of the page for Prometheus, under the same names: each export is a scrape, converted in a thread of its
own, so a collector that does not respond delays nothing else.
"""

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import groupby
from logging import INFO, WARNING

from kbroker.common import install_command
from kbroker.config.values import ConfigError
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        MetricExportResult,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import (
        SERVICE_INSTANCE_ID,
        SERVICE_NAME,
        SERVICE_VERSION,
        OTELResourceDetector,
        Resource,
    )
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ModuleNotFoundError as error:
    raise ConfigError(f"kbroker.metrics.otlp=true needs {error.name}: {install_command('otel')}") from None

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

log = EventLogger("kbroker.exporter")

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
DEFAULT_INTERVAL_MS = 60_000
CUMULATIVE = AggregationTemporality.CUMULATIVE


class OtlpExporter:
    """Exports what `scrape` returns, the page in parts, each OTEL_METRIC_EXPORT_INTERVAL milliseconds."""

    def __init__(self, environment: Environment, node_id: int, scrape: Callable[[], Awaitable[list[bytes]]]) -> None:
        """Raises ConfigError if an environment variable is invalid."""
        text = os.environ.get(INTERVAL) or str(DEFAULT_INTERVAL_MS)
        if not text.isdecimal() or not int(text):
            raise ConfigError(f"{INTERVAL} must be a number of milliseconds, not {text!r}")
        self._environment = environment
        self._scrape = scrape
        version = metadata.version("kbroker")
        own = {SERVICE_NAME: "kbroker", SERVICE_INSTANCE_ID: str(node_id), SERVICE_VERSION: version}
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before these.
        self._resource = Resource.create(own).merge(OTELResourceDetector().detect())
        self._start_ns = environment.clock.now_ms() * 1_000_000
        try:
            self._exporter = OTLPMetricExporter()
        except (OSError, ValueError) as error:
            raise ConfigError(f"OTEL_EXPORTER_OTLP_*: {error}") from None
        self._thread = ThreadPoolExecutor(1, "kbroker-otlp")
        self._is_failing = False
        self._task = PeriodicTask(environment, "OTLP export", lambda: int(text), self._export)
        self._task.schedule()

    async def stop(self) -> None:
        self._exporter.shutdown()
        await self._task.stop()
        self._thread.shutdown(wait=False)

    async def _export(self) -> None:
        page = await self._scrape()
        ok = await self._environment.loop.run_in_executor(self._thread, self._export_blocking, page)
        if ok == self._is_failing:
            self._is_failing = not ok
            # The logger of opentelemetry says why.
            log.event(INFO if ok else WARNING, "metrics are exported again" if ok else "metrics could not be exported")

    def _export_blocking(self, page: list[bytes]) -> bool:
        now_ns = self._environment.clock.now_ms() * 1_000_000
        scope = ScopeMetrics(InstrumentationScope("kbroker"), list(_metrics(page, self._start_ns, now_ns)), "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        return self._exporter.export(data) is MetricExportResult.SUCCESS


def _metrics(page: list[bytes], start_ns: int, now_ns: int) -> Iterator[Metric]:
    for family in text_string_to_metric_families(b"".join(page).decode()):
        if family.type == "histogram":
            groups = groupby(family.samples, lambda sample: _attributes(sample))
            points = [_histogram_point(own, list(samples), start_ns, now_ns) for own, samples in groups]
            yield Metric(family.name, family.documentation, "s", Histogram(points, CUMULATIVE))
            continue
        numbers = [NumberDataPoint(each.labels, start_ns, now_ns, each.value) for each in family.samples]
        if family.type == "counter":
            # The parser removes _total from the name of the family.
            name = family.samples[0].name if family.samples else family.name
            yield Metric(name, family.documentation, "", Sum(numbers, CUMULATIVE, is_monotonic=True))
        else:
            yield Metric(family.name, family.documentation, "", Gauge(numbers))


def _attributes(sample: Sample) -> Mapping[str, str]:
    return {name: value for name, value in sample.labels.items() if name != "le"}


def _histogram_point(
    attributes: Mapping[str, str], samples: list[Sample], start_ns: int, now_ns: int
) -> HistogramDataPoint:
    """Return a histogram. Its samples are cumulative: buckets by their upper bounds, the sum, and the count."""
    *buckets, total, count = samples
    counts = [int(bucket.value) for bucket in buckets]
    bounds = [float(bucket.labels["le"]) for bucket in buckets[:-1]]
    own = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    # The minimum and the maximum are not known.
    limits = (float("inf"), float("-inf"))
    return HistogramDataPoint(attributes, start_ns, now_ns, int(count.value), total.value, own, bounds, *limits)
