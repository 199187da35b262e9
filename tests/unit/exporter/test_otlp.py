"""Metrics by OTLP/HTTP, from a broker to a receiver in this process."""

import gzip
import queue
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

from kbroker.config.values import ConfigError
from kbroker.testing import Broker

TIMEOUT_S = 60.0
TOPIC_SIZE = "kafka_log_log_size"
RECORDS_IN = "kafka_server_brokertopicmetrics_messagesin_total"
DELAY = "kbroker_event_loop_delay_seconds"


class Receiver(HTTPServer):
    def __init__(self) -> None:
        self.requests: queue.Queue[ExportMetricsServiceRequest] = queue.Queue()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == "/v1/metrics"
        assert self.headers["X-Key"] == "secret"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        text = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.requests.put(ExportMetricsServiceRequest.FromString(text))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Key=secret")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        yield server
        server.shutdown()
        thread.join()


def point(metric: Metric, **attributes: str) -> Any:
    """Return the data point with these attributes."""
    points = getattr(metric, metric.WhichOneof("data")).data_points
    (found,) = (p for p in points if {each.key: each.value.string_value for each in p.attributes} == attributes)
    return found


def value(metric: Metric, **attributes: str) -> float:
    found = point(metric, **attributes)
    return float(getattr(found, found.WhichOneof("value")))


def test_the_metrics_of_a_broker(receiver: Receiver) -> None:
    with Broker({"kbroker.metrics.otlp": "true"}) as kafka:
        topic = kafka.topic()
        kafka.produce(topic, [b"a", b"b", b"c"])
        count = 0
        while count != 3:
            (resource,) = receiver.requests.get(timeout=TIMEOUT_S).resource_metrics
            metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
            points = metrics[TOPIC_SIZE].gauge.data_points if TOPIC_SIZE in metrics else ()
            known = any(topic == each.value.string_value for p in points for each in p.attributes)
            count = value(metrics[RECORDS_IN], topic=topic) if known else 0
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about.items() >= {"service.name": "kbroker", "service.instance.id": "1"}.items()
    assert about["deployment.environment.name"] == "test"
    assert metrics[RECORDS_IN].sum.is_monotonic
    assert metrics[RECORDS_IN].sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert value(metrics[TOPIC_SIZE], topic=topic, partition="0") > 0
    assert value(metrics["process_cpu_seconds_total"]) > 0
    produced = point(metrics["kafka_network_requestmetrics_totaltime_seconds"], request="Produce")
    assert produced.count == sum(produced.bucket_counts) > 0
    assert len(produced.bucket_counts) == len(produced.explicit_bounds) + 1
    assert produced.sum > 0
    assert point(metrics[DELAY]).count > 0


def test_an_invalid_variable_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "soon")
    with pytest.raises(ConfigError, match="OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds, not 'soon'"):
        Broker({"kbroker.metrics.otlp": "true"}).open()


def test_a_broker_without_the_packages_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics.export", None)
    monkeypatch.delitem(sys.modules, "kbroker.exporter.otlp", raising=False)
    with pytest.raises(ConfigError, match=r"kbroker.metrics.otlp=true needs opentelemetry.*: pip install"):
        Broker({"kbroker.metrics.otlp": "true"}).open()
