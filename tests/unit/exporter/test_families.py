"""The text format of labels and histograms."""

from prometheus_client.parser import text_string_to_metric_families

from kbroker.exporter.families import LINES_PER_PART, MetricsPage, labels
from kbroker.runtime.metrics import LATENCY_BOUNDS_NS, Histogram

NAME = "kbroker_event_loop_delay_seconds"


def test_labels_are_escaped():
    page = MetricsPage()
    group_id = 'a "b"\\n\n\ud800ü{},='
    page.add("kafka_consumergroup_members", 3, labels(consumergroup=group_id))
    text = b"".join(page.parts()).decode()
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"consumergroup": group_id.replace("\ud800", "?")}


def test_histograms():
    histogram = Histogram()
    for ns in (0, LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[0] + 1, LATENCY_BOUNDS_NS[-1], LATENCY_BOUNDS_NS[-1] + 1):
        histogram.observe(ns)
    page = MetricsPage()
    page.add_histogram(NAME, Histogram.merged([histogram, histogram]), api="x")
    (family,) = text_string_to_metric_families(b"".join(page.parts()).decode())
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert samples[NAME + "_bucket", "1.638e-05"] == 4
    assert samples[NAME + "_bucket", "3.277e-05"] == 6
    assert samples[NAME + "_bucket", "34.36"] == 8
    assert samples[NAME + "_bucket", "+Inf"] == samples[NAME + "_count", None] == 10
    assert samples[NAME + "_sum", None] * 1e9 == 2 * (2 * LATENCY_BOUNDS_NS[0] + 2 * LATENCY_BOUNDS_NS[-1] + 2)
    assert {sample.labels["api"] for sample in family.samples} == {"x"}


def test_a_long_family_has_several_parts():
    page = MetricsPage()
    for number in range(2 * LINES_PER_PART + 1):
        page.add("kafka_log_log_size", number, labels(partition=number, topic="t"))
    parts = list(page.parts())
    assert len(parts) == 4
    (family,) = text_string_to_metric_families(b"".join(parts).decode())
    assert len(family.samples) == 2 * LINES_PER_PART + 1
