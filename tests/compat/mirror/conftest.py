"""The servers and the MirrorMaker of this folder's tests."""

import shutil
from collections.abc import Iterator

import pytest

from tests.compat.mirror.mirror_maker import QuickKafka, mirror_classpath
from tests.compat.mirror.world import FLOWS, Flow, World, running_world
from tests.compat.support import need_own_broker
from tests.compat.transactions.java_client import java_gateway


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuickKafka]:
    """An Apache Kafka, from Maven."""
    need_own_broker()
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("not run: MirrorMaker needs Java 17 or newer, and Maven to fetch it")
    server = QuickKafka(tmp_path_factory.mktemp("kafka"))
    server.prepare()
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def world(kafka: QuickKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three clusters with MirrorMaker between them, which has been killed once and runs again."""
    directory = tmp_path_factory.mktemp("world")
    with (
        java_gateway(mirror_classpath(), directory / "java.log") as java,
        running_world(kafka, directory, java) as world,
    ):
        yield world


@pytest.fixture(params=FLOWS, ids=str)
def flow(request: pytest.FixtureRequest) -> Flow:
    """Each direction of mirroring."""
    flow: Flow = request.param
    return flow
