"""How the tests are shared out when pytest-xdist runs them in two processes (./scripts/test).

Each group stays in one process, in order, so that what its tests share (a broker, a JVM, a Spark) exists once.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# The longest first, for the two processes to end at about the same time; tests/unit is what is in no other folder.
GROUPS = ("compat/spark", "unit/simulation", "compat", "compat/transactions", "unit")


def group_of(folder: str) -> str:
    """The group of a test in this folder, given from here on: the narrowest that it is in."""
    return max((group for group in GROUPS if f"{folder}/".startswith(f"{group}/")), key=len)


# Before pytest-xdist looks at the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    groups = {item: group_of(item.path.parent.relative_to(HERE).as_posix()) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: GROUPS.index(groups[item]))
