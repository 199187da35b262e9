"""The reader of OTLP, compared with OpenTelemetry's own classes."""

from contextlib import suppress
from random import Random

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Histogram,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from kbroker.telemetry.otlp import MAX_FIELDS, DataPoint, OtlpReader
from protocol.errors import MalformedError


def random_value(random: Random) -> tuple[AnyValue, str]:
    number, real, text = (
        random.randrange(-(1 << 63), 1 << 63),
        random.uniform(-1e9, 1e9),
        random.choice(["", "é", "t-1"]),
    )
    return random.choice(
        [
            (AnyValue(string_value=text), text), (AnyValue(int_value=number), str(number)),
            (AnyValue(double_value=real), str(real)), (AnyValue(bool_value=True), "true"),
            (AnyValue(bytes_value=b"x"), ""), (AnyValue(), ""),
        ]
    )  # fmt: skip


def random_attributes(random: Random) -> tuple[list[KeyValue], tuple[tuple[str, str], ...]]:
    rows = [(f"key.{number}", *random_value(random)) for number in range(random.randrange(4))]
    return [KeyValue(key=key, value=value) for key, value, _ in rows], tuple((key, text) for key, _, text in rows)


def random_metrics(random: Random) -> tuple[MetricsData, list[DataPoint]]:
    """Return metrics, and the data points that are to be found in them."""
    resources, expected = [], []
    for _ in range(random.randrange(3)):
        attributes, of_client = random_attributes(random)
        metrics = []
        for number in range(random.randrange(5)):
            name, kind = f"m.{number}", random.choice(["gauge", "sum", "histogram", "none"])
            temporality, is_monotonic = random.randrange(3), random.random() < 0.5
            points = []
            for _ in range(random.randrange(4)):
                labels, texts = random_attributes(random)
                value = random.choice([random.randrange(-(1 << 63), 1 << 63), random.uniform(-1e300, 1e300)])
                field = {"as_int": value} if isinstance(value, int) else {"as_double": value}
                has_value = random.random() < 0.8
                points.append(
                    NumberDataPoint(time_unix_nano=5, attributes=labels, flags=0 if has_value else 1, **field)
                )
                is_sum = kind == "sum"
                if has_value and kind in ("gauge", "sum"):
                    expected.append(
                        DataPoint(
                            name, is_sum and is_monotonic, is_sum and temporality == 1, float(value), of_client, texts
                        )
                    )
            metric = Metric(name=name, description="text", unit="ms")
            if kind == "gauge":
                metric.gauge.CopyFrom(Gauge(data_points=points))
            elif kind == "sum":
                total = Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=is_monotonic)
                metric.sum.CopyFrom(total)
            elif kind == "histogram":
                metric.histogram.CopyFrom(Histogram())
            metrics.append(metric)
        scopes = [ScopeMetrics(metrics=metrics[:2]), ScopeMetrics(metrics=metrics[2:])]
        resources.append(ResourceMetrics(resource=Resource(attributes=attributes), scope_metrics=scopes))
    return MetricsData(resource_metrics=resources), expected


@pytest.mark.parametrize("seed", range(30))
def test_data_points_are_those_of_the_library(seed: int):
    random = Random(seed)
    metrics, expected = random_metrics(random)
    data = metrics.SerializeToString()
    assert list(OtlpReader(data).data_points()) == expected
    # Whatever bytes a client sends, nothing else is raised.
    for _ in range(30):
        damaged = bytearray(data)
        for _ in range(random.randrange(1, 4) if damaged else 0):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        with suppress(MalformedError):
            list(OtlpReader(damaged[: random.randrange(len(damaged) + 1)]).data_points())


@pytest.mark.parametrize(
    "data", [b"\xff" * 11, b"\x0a\x05a", b"\x0b", b"\x08", b"\x0a\x03\x0a\x02a", b"\x09" + bytes(7)]
)
def test_invalid_bytes(data: bytes):
    with pytest.raises(MalformedError):
        list(OtlpReader(data).data_points())


def test_the_number_of_fields_is_bounded():
    with pytest.raises(MalformedError, match="more than 500000 fields"):
        list(OtlpReader(b"\x0a\x00" * (MAX_FIELDS + 1)).data_points())
