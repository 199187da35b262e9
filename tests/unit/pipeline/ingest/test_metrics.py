"""The metrics of `archive run`."""

import socket
import urllib.request

import pytest

from kbroker.archive.topic_state import Gap
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.metrics import serve_metrics
from kbroker.pipeline.ingest.options import IngestSummary


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_metrics_are_served() -> None:
    summary = IngestSummary(batches=2, records={"t": 7}, gaps={"t": [Gap(0, 5, 9, "retention")]}, errors=1)
    summary.begin_s = 0
    summary.set_lags({"t": 3, "u": 0})
    port = free_port()
    with serve_metrics(summary, ("127.0.0.1", port)):
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        with (
            pytest.raises(PipelineError, match=f"--metrics 127.0.0.1:{port}: "),
            serve_metrics(summary, ("127.0.0.1", port)),
        ):
            pass
    values = dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    assert values['kbroker_archive_records_total{topic="t"}'] == "7.0"
    assert values['kbroker_archive_lost_offsets_total{topic="t"}'] == "4.0"
    assert values["kbroker_archive_batches_total"] == "2.0"
    assert values["kbroker_archive_errors_total"] == "1.0"
    assert values['kbroker_archive_lag_records{topic="t"}'] == "3.0"
    assert float(values['kbroker_archive_lag_seconds{topic="t"}']) > 1e9
    assert values['kbroker_archive_lag_seconds{topic="u"}'] == "0.0"


def test_a_lag_begins_when_the_archive_last_had_everything() -> None:
    summary = IngestSummary()
    summary.set_lags({"t": 0})
    complete_s = summary.lags["t"].complete_s
    summary.set_lags({"t": 5})
    assert summary.lags["t"] == (5, complete_s)
    summary.set_lags({"t": 0})
    assert summary.lags["t"].complete_s >= complete_s
