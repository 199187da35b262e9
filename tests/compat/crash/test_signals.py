"""Signals that stop a broker."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.compat.hostile.raw_client import RawClient, framed
from tests.compat.support import DEADLINE_S, BrokerProcess, need_own_broker, running_broker

pytestmark = [pytest.mark.feature("kill -9"), pytest.mark.client("wire")]


CLIENTS = 40
PIPELINED = 400
OFFSET_FETCH_VERSION = 5


@contextmanager
def sighup_in_child_processes(action: signal.Handlers) -> Iterator[None]:
    """Set the action of SIGHUP, which child processes inherit: it is ignored if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def end(broker: BrokerProcess, number: signal.Signals) -> int:
    """Return the exit status after a signal."""
    assert broker._process is not None
    broker._process.send_signal(number)
    return broker._process.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    need_own_broker()
    with sighup_in_child_processes(signal.SIG_DFL), running_broker(tmp_path) as broker:
        assert end(broker, number) == 0
        assert f"stopping signal={number.name}" in broker.errors
        assert (broker.data_dir / ".kafka_cleanshutdown").exists()


def test_sighup_is_ignored_under_nohup(tmp_path: Path) -> None:
    need_own_broker()
    broker = BrokerProcess(tmp_path)
    with sighup_in_child_processes(signal.SIG_IGN):
        broker.start()
    try:
        os.kill(broker.pid, signal.SIGHUP)
        assert end(broker, signal.SIGTERM) == 0
        assert "stopping signal=SIGTERM" in broker.errors
        assert "SIGHUP" not in broker.errors
    finally:
        broker.end()


def test_requests_that_arrive_at_the_end_leave_no_warning(tmp_path: Path) -> None:
    """Python warns about the coroutine of a handler that has not begun."""
    need_own_broker()
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    with running_broker(tmp_path) as broker:
        clients = [RawClient(broker.bootstrap) for _ in range(CLIENTS)]
        for client in clients:
            assert client.try_send(framed(request, OFFSET_FETCH_VERSION) * PIPELINED)
        assert clients[0].try_receive() is not None
        # Requests of all of them are waiting: each is read as soon as the one before it has its response.
        assert end(broker, signal.SIGTERM) == 0
        assert "never awaited" not in broker.errors
        assert "Traceback" not in broker.errors
