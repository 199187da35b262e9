"""Fixtures of the Spark tests: topics, streaming queries."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.spark.helpers import Streams, Topics

# No test takes half as long; pytest-timeout ends one after 600 seconds, and shows threads of Python alone.
HANGS_AFTER_S = 300.0


@pytest.fixture(autouse=True)
def _threads_of_a_hanging_jvm(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the driver's JVM print its threads, which are in the report of a test that hangs."""
    if "spark" not in request.fixturenames:
        yield
        return
    pid = request.getfixturevalue("spark").sparkContext._gateway.proc.pid
    timer = threading.Timer(HANGS_AFTER_S, os.kill, (pid, signal.SIGQUIT))
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


@pytest.fixture
def topics(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Topics]:
    """The topics of a test, which are deleted after it."""
    topics = Topics(bootstrap, request.node.originalname.removeprefix("test_"))
    yield topics
    topics.delete()


@pytest.fixture
def streams(spark: Any, tmp_path: Path) -> Iterator[Streams]:
    """The streaming queries of a test, which are stopped after it."""
    streams = Streams(spark, tmp_path)
    yield streams
    streams.stop()
