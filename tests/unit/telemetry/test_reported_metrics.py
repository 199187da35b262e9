"""What clients push, as samples of the metrics page."""

from math import inf, nan

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Histogram, Metric

from kbroker.telemetry.reported_metrics import COUNTER, GAUGE, SampleKey, read_samples
from protocol.errors import MalformedError
from tests.unit.support.otlp import CUMULATIVE, DELTA, counter, gauge, metrics_data

LATENCY = "org.apache.kafka.consumer.fetch.latency.avg"
SENT = "org.apache.kafka.producer.record.send"


def samples(*metrics: Metric, **resource: str) -> dict[SampleKey, float]:
    found, _ = read_samples(metrics_data(*metrics, **resource).SerializeToString(), {}, 1000)
    return dict(found)


def test_names_kinds_and_labels():
    found = samples(
        gauge(LATENCY, 1.5, topic="t", partition="3"),
        counter(SENT + ".total", 7),
        counter(SENT, 8),
        gauge("kafka_log_log_size", 9, **{"a.b": "x", "client_id": "another's", "__name__": "n", "9": "digits"}),
        group_id="g",
    )
    assert found == {
        SampleKey(
            GAUGE,
            "org_apache_kafka_consumer_fetch_latency_avg",
            (("group_id", "g"), ("topic", "t"), ("partition", "3")),
        ): 1.5,
        # The second one has the same name as the first, and replaces it.
        SampleKey(COUNTER, "org_apache_kafka_producer_record_send_total", (("group_id", "g"),)): 8,
        # No client reports in the name of the broker, or of another client.
        SampleKey(GAUGE, "client_kafka_log_log_size", (("group_id", "g"), ("a_b", "x"), ("name__", "n"))): 9,
    }


def test_what_has_no_value_is_no_sample():
    assert samples(gauge("a", nan), gauge("b", inf), Metric(name="c", histogram=Histogram()), Metric(name="d")) == {}


@pytest.mark.parametrize(("temporality", "total"), [(DELTA, 12), (CUMULATIVE, 5)])
def test_deltas_are_added_up(temporality: int, total: int):
    key = SampleKey(COUNTER, "org_apache_kafka_producer_record_send_total", ())
    data = metrics_data(counter(SENT, 5, temporality)).SerializeToString()
    assert read_samples(data, {key: 7}, 10) == ({key: total}, True)


def test_the_number_of_samples_is_bounded():
    data = metrics_data(*(gauge(f"m{number}", number) for number in range(4)), gauge("m0", 11)).SerializeToString()
    assert read_samples(data, {}, 4)[1]
    found, has_all = read_samples(data, {}, 3)
    assert [key.name for key in found] == ["client_m0", "client_m1", "client_m2"]
    assert not has_all


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05a", bytes(3)])
def test_what_is_not_otlp_is_malformed(data: bytes):
    with pytest.raises(MalformedError):
        read_samples(data, {}, 10)
