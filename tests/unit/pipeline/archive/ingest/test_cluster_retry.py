"""Requests that are repeated while no broker responds."""

import pytest

from kbroker.pipeline.archive.ingest import cluster_retry
from kbroker.pipeline.archive.ingest.cluster_retry import RetryingCluster
from kbroker.pipeline.archive.ingest.stop import RunStopped, StopEvent
from kbroker.pipeline.cluster_admin import BrokerUnavailableError
from kbroker.pipeline.errors import PipelineError


def fail(_):
    raise BrokerUnavailableError("gone")


def cluster(wait_s, stop=None, warn=lambda _: None):
    return RetryingCluster("127.0.0.1:1", wait_s, stop or StopEvent(), warn)


def test_a_request_is_repeated_until_there_is_a_result():
    warnings, results = [], [BrokerUnavailableError("gone"), BrokerUnavailableError("gone"), 17]

    def request(_):
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert cluster(60, warn=warnings.append).call(request) == 17
    assert warnings == ["gone; retrying"]


def test_repeating_ends_after_the_timeout_and_when_the_run_is_stopped():
    with pytest.raises(BrokerUnavailableError):
        cluster(0.1).call(fail)
    stop = StopEvent()
    with pytest.raises(RunStopped):
        cluster(600, stop, lambda _: stop.set()).call(fail)


def test_a_request_is_repeated_until_its_result_is_valid(monkeypatch):
    monkeypatch.setattr(cluster_retry, "_SETTLE_PAUSE_S", 0.001)
    results = [1, 2, 3]

    def require(minimum):
        def check(result):
            if result < minimum:
                raise PipelineError(f"{result} is too low")

        return check

    assert cluster(60).call_until_valid(lambda _: results.pop(0), require(3)) == 3
    monkeypatch.setattr(cluster_retry, "SETTLE_S", 0.01)
    with pytest.raises(PipelineError, match="1 is too low"):
        cluster(60).call_until_valid(lambda _: 1, require(2))
