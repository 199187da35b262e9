"""The reports that are printed after the tests: a matrix, and sections of lines, merged from all test processes."""

from typing import Any

import pytest

from tests.compat.matrix import Matrix

_KEY = pytest.StashKey["Reports"]()


class Reports:
    def __init__(self) -> None:
        self.matrix = Matrix()
        self.sections: dict[str, list[str]] = {}

    def section(self, title: str) -> list[str]:
        """Return the list of lines under this title, to append to."""
        return self.sections.setdefault(title, [])

    def serialized(self) -> dict[str, Any]:
        """Return simple types, which pytest-xdist can send from a worker to the main process."""
        return {"outcomes": self.matrix.outcomes(), "sections": self.sections}

    def add(self, serialized: dict[str, Any]) -> None:
        """Merge the reports of a worker."""
        for test, client, feature, outcome in serialized["outcomes"]:
            self.matrix.record(test, (client, feature), outcome)
        for title, lines in serialized["sections"].items():
            self.section(title).extend(lines)


def reports(config: pytest.Config) -> Reports:
    """Return the reports of this process."""
    return config.stash.setdefault(_KEY, Reports())
