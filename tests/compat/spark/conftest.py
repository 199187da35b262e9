"""Fixtures of the Spark tests: topics, streaming queries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.spark.helpers import Streams, Topics


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
