"""Requests with names and counts of the largest sizes: other clients are served between the slices of each."""

from collections.abc import Callable

import pytest

from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k15_describe_groups import DescribeGroupsRequest
from protocol.schema.message import Message
from tests.compat.hostile.raw_client import RawClient, framed
from tests.compat.hostile.target import Target
from tests.compat.support import eventually

pytestmark = [pytest.mark.feature("hostile clients"), pytest.mark.client("wire")]

LONG = "x" * 32_000
LONG_NAMES = [f"{number:05d}{LONG}" for number in range(300)]
SHORT_NAMES = [f"n{number}" for number in range(9_000)]


@pytest.fixture(scope="module", autouse=True)
def coordinator(shared_target: Target) -> None:
    """The coordinator is created on the first FindCoordinator."""
    with RawClient(shared_target.bootstrap, "setup") as client:

        def found() -> bool:
            return client.request(FindCoordinatorRequest(key="g"), 1, FindCoordinatorResponse).error_code == 0

        eventually(found, "a coordinator")


def find_coordinator(names: list[str]) -> tuple[Message, int]:
    return FindCoordinatorRequest(coordinator_keys=names), 6


def describe_groups(names: list[str]) -> tuple[Message, int]:
    return DescribeGroupsRequest(groups=names), 6


@pytest.mark.parametrize("names", [LONG_NAMES, SHORT_NAMES], ids=["long names", "many names"])
@pytest.mark.parametrize("request_of", [find_coordinator, describe_groups])
def test_names_of_groups(
    target: Target, request_of: Callable[[list[str]], tuple[Message, int]], names: list[str]
) -> None:
    frame = framed(*request_of(names))

    def attack() -> None:
        with RawClient(target.bootstrap) as client:
            assert client.try_send(frame)
            assert client.try_receive() is not None
            target.pace(100)

    target.attacked(f"{request_of.__name__} of {len(names)} names", attack)
