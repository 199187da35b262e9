"""How the tests are shared out when pytest-xdist runs them in two processes (./scripts/test)."""

from typing import Any

import pytest

# Each stays in one process, in order, so that what its tests share (a broker, a JVM, a Spark) exists once. The longest
# first, for the two processes to end at about the same time. A test is of the narrowest that it is in.
GROUPS = ("tests/compat/spark/", "tests/unit/simulation/", "tests/compat/", "tests/compat/transactions/", "tests/unit/")


def group_of(test: str) -> str:
    """The group of a test, of which its id is given: tests/unit/test_world.py::test_time[late]"""
    return max((group for group in GROUPS if test.startswith(group)), key=len)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: GROUPS.index(group_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # Not --dist loadgroup: with pytest 9 the groups of pytest-xdist 3.8 are not heeded.
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)
