"""Metrics as clients push them, in OTLP."""

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

DELTA, CUMULATIVE = 1, 2


def attributes(**values: str) -> list[KeyValue]:
    return [KeyValue(key=name, value=AnyValue(string_value=value)) for name, value in values.items()]


def gauge(name: str, value: float, **labels: str) -> Metric:
    return Metric(
        name=name, gauge=Gauge(data_points=[NumberDataPoint(as_double=value, attributes=attributes(**labels))])
    )


def counter(name: str, value: int, temporality: int = CUMULATIVE, **labels: str) -> Metric:
    points = [NumberDataPoint(as_int=value, attributes=attributes(**labels))]
    return Metric(name=name, sum=Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=True))


def metrics_data(*metrics: Metric, **resource: str) -> MetricsData:
    scope = ScopeMetrics(metrics=metrics)
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=Resource(attributes=attributes(**resource)), scope_metrics=[scope])]
    )
