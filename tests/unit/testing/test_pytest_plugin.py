"""The fixtures in a session of pytest of their own."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
from kbroker.client.connection import BrokerUnreachable

seen = set()

@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_its_own(kafka, number):
    assert kafka.request_log.faults == [] and kafka.requests() == []
    topic = kafka.topic()
    assert topic.startswith(f"test_each_test_has_its_own-{number}") and topic not in seen
    seen.add(topic)
    kafka.produce(topic, [b"v"])
    assert len(kafka.consume(topic, n=1)) == 1

def test_it_moves_the_clock(kafka):
    kafka.topic("moved")
    kafka.clock.advance(days=100)
    kafka.kill()

def test_the_next_one_has_a_new_broker(kafka):
    assert not kafka.clock.is_moved
    kafka.topic("moved")

def test_it_fills_the_disk(kafka):
    kafka.topic("filled")
    kafka.disk.fill()
    with pytest.raises(Exception):
        kafka.topic("refused")

def test_it_creates_a_topic_after_a_full_disk(kafka):
    kafka.topic("filled")

def test_it_leaves_a_fault_behind(kafka):
    seen.add(fault := kafka.fault(api="Produce", drop=True))
    fault.__enter__()
"""


def test_tests_share_a_broker_but_nothing_else_and_leftovers_are_one_clear_error(tmp_path: Path):
    """In two processes, each with a broker of its own."""
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "kbroker.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(tmp_path), "-n2", "--kafka-leftovers", "test_it.py"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout
    assert "the test has left behind: the fault Produce drop\n" in output
    assert "the test has left behind: the topic test_each_test_has_its_own-1" in output
    assert "7 passed" in output
