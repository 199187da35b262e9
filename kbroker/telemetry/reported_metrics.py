"""What one client has reported, as samples of the metrics page. The metrics are OTLP's (OpenTelemetry).

Names and labels are those of OpenTelemetry's rules for Prometheus: "org.apache.kafka.producer.record.send.total"
becomes org_apache_kafka_producer_record_send_total, and a counter ends with _total. A name that is not Kafka's begins
with client_, so that no client can report in the name of the broker.

Clients send gauges and sums. Other kinds of metrics (histograms, summaries) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.runtime.turns import paced, yield_if_due
from kbroker.telemetry.subscriptions import CLIENT_LABELS
from protocol.errors import MalformedError

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, MetricsData, NumberDataPoint

KAFKA_PREFIX, OTHER_PREFIX = "org_apache_kafka_", "client_"
COUNTER, GAUGE = "counter", "gauge"
# Longer names and values are cut: those of Kafka's clients are shorter, or are names of topics.
MAX_NAME, MAX_VALUE = 200, 256
MAX_LABELS = 20

_DELTA = 1  # AGGREGATION_TEMPORALITY_DELTA
_NO_RECORDED_VALUE = 1  # DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_INVALID = re.compile(r"[^a-zA-Z0-9_]")

Attributes = Iterable["KeyValue"]


class SampleKey(NamedTuple):
    """The family of a sample (COUNTER or GAUGE, and name), and its labels by name."""

    kind: str
    name: str
    labels: tuple[tuple[str, str], ...]


Samples = Mapping[SampleKey, float]


def decode_metrics(data: bytes) -> MetricsData:
    """Decode a push, in a thread: it may be large. Raises MalformedError."""
    # Imported when a client pushes first: it takes 60 to 100 ms, and 6 MiB.
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    try:
        metrics: MetricsData = MetricsData.FromString(data)
    except DecodeError as error:
        raise MalformedError(f"not valid OTLP metrics: {error}") from None
    return metrics


def read_samples(metrics: MetricsData, before: Samples, max_samples: int) -> tuple[Samples, bool]:
    """Return the samples of a push, and whether these are all: there may be more than `max_samples`.

    A client pushes all its metrics each time. `before`: its samples before, to which deltas are added.
    """
    samples: dict[SampleKey, float] = {}
    for key, value, is_delta in _data_points(metrics):
        if len(samples) >= max_samples and key not in samples:
            return samples, False
        samples[key] = value + before.get(key, 0) if is_delta else value
    return samples, True


def _data_points(metrics: MetricsData) -> Iterator[tuple[SampleKey, float, bool]]:
    for resource in metrics.resource_metrics:
        of_client = _labels(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in paced(scope.metrics):
                yield from _points_of(metric, of_client)


def _points_of(metric: Metric, of_client: dict[str, str]) -> Iterator[tuple[SampleKey, float, bool]]:
    points: Iterable[NumberDataPoint]
    is_counter = is_delta = False
    match metric.WhichOneof("data"):
        case "gauge":
            points = metric.gauge.data_points
        case "sum":
            points = metric.sum.data_points
            is_counter = metric.sum.is_monotonic
            is_delta = metric.sum.aggregation_temporality == _DELTA
        case _:
            return
    kind, name = (COUNTER if is_counter else GAUGE), _family_name(metric.name, is_counter)
    for point in points:
        yield_if_due()
        value = float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)
        # A maximum or average of nothing is NaN.
        if isfinite(value) and not point.flags & _NO_RECORDED_VALUE:
            labels = of_client | _labels(point.attributes) if point.attributes else of_client
            yield SampleKey(kind, name, tuple(labels.items())), value, is_delta


@lru_cache(maxsize=4096)
def _family_name(name: str, is_counter: bool) -> str:
    name = _INVALID.sub("_", name[:MAX_NAME])
    if not name.startswith(KAFKA_PREFIX):
        name = OTHER_PREFIX + name
    return name if not is_counter or name.endswith("_total") else name + "_total"


def _labels(attributes: Attributes) -> dict[str, str]:
    labels: dict[str, str] = {}
    for attribute in attributes[:MAX_LABELS]:  # type: ignore[index]
        name = _label_name(attribute.key)
        if name and name not in CLIENT_LABELS:
            labels[name] = _text(attribute.value)[:MAX_VALUE]
    return labels


@lru_cache(maxsize=256)
def _label_name(name: str) -> str:
    return _INVALID.sub("_", name[:MAX_NAME]).lstrip("_0123456789")


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    return str(getattr(value, kind)) if kind in ("string_value", "int_value", "double_value", "bool_value") else ""
