"""What one client has reported, as samples of the metrics page. The metrics are OTLP's (OpenTelemetry).

Names and labels are those of OpenTelemetry's rules for Prometheus: "org.apache.kafka.producer.record.send.total"
becomes org_apache_kafka_producer_record_send_total, and a counter ends with _total. A name that is not Kafka's begins
with client_, so that no client can report in the name of the broker.

Clients send gauges and sums. Other kinds of metrics (histograms, summaries) are ignored.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.telemetry.otlp import Attributes, OtlpReader
from kbroker.telemetry.subscriptions import CLIENT_LABELS

KAFKA_PREFIX, OTHER_PREFIX = "org_apache_kafka_", "client_"
COUNTER, GAUGE = "counter", "gauge"
# Longer names and values are cut, and so are further labels: a topic has at most 249 characters.
MAX_NAME, MAX_VALUE = 200, 256
MAX_LABEL_CHARACTERS = 600

_INVALID = re.compile(r"[^a-zA-Z0-9_]")


class SampleKey(NamedTuple):
    """The family of a sample (COUNTER or GAUGE, and name), and its labels by name."""

    kind: str
    name: str
    labels: Attributes


Samples = Mapping[SampleKey, float]


def read_samples(data: Buffer, before: Samples, max_samples: int) -> tuple[Samples, bool]:
    """Return the samples of a push, and whether these are all: there may be more than `max_samples`.

    A client pushes all its metrics each time. `before`: its samples before, to which deltas are added. Raises
    MalformedError.
    """
    samples: dict[SampleKey, float] = {}
    for point in OtlpReader(data).data_points():
        # A maximum or average of nothing is NaN.
        if isfinite(point.value):
            key = SampleKey(
                COUNTER if point.is_counter else GAUGE,
                _family_name(point.name[:MAX_NAME], point.is_counter),
                _labels((*point.of_client, *point.attributes)),
            )
            if len(samples) >= max_samples and key not in samples:
                return samples, False
            samples[key] = point.value + before.get(key, 0) if point.is_delta else point.value
    return samples, True


@lru_cache(maxsize=4096)
def _family_name(name: str, is_counter: bool) -> str:
    name = _INVALID.sub("_", name)
    if not name.startswith(KAFKA_PREFIX):
        name = OTHER_PREFIX + name
    return name if not is_counter or name.endswith("_total") else name + "_total"


@lru_cache(maxsize=256)
def _labels(attributes: Attributes) -> Attributes:
    """Return attributes as labels; of two with the same name, the value of the last."""
    labels: dict[str, str] = {}
    room = MAX_LABEL_CHARACTERS
    for key, text in attributes:
        name, value = _INVALID.sub("_", key[:MAX_NAME]).lstrip("_0123456789"), text[:MAX_VALUE]
        if name and name not in CLIENT_LABELS:
            room -= len(name) + len(value)
            if room < 0:
                break
            labels[name] = value
    return tuple(labels.items())
