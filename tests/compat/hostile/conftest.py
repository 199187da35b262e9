"""The broker that every hostile test attacks, and the control broker that none attacks."""

from collections.abc import Iterator

import pytest

from tests.compat.hostile.target import Target
from tests.compat.support import need_own_broker, running_broker


@pytest.fixture(scope="session")
def shared_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    need_own_broker()
    with (
        running_broker(tmp_path_factory.mktemp("target")) as broker,
        running_broker(tmp_path_factory.mktemp("control")) as control,
    ):
        target = Target(broker, control)
        yield target
        target.end()
        broker.stop()


@pytest.fixture
def target(shared_target: Target) -> Target:
    return shared_target
