"""What the suite prints after its tests: a matrix, and lines by section, gathered from all processes that ran tests."""

from typing import Any

import pytest

from tests.compat.matrix import Matrix

_KEY = pytest.StashKey["Reports"]()


class Reports:
    def __init__(self) -> None:
        self.matrix = Matrix()
        self.sections: dict[str, list[str]] = {}

    def section(self, title: str) -> list[str]:
        """The lines under this title, to be added to."""
        return self.sections.setdefault(title, [])

    def packed(self) -> dict[str, Any]:
        """In simple types, as pytest-xdist carries them from a worker to the process that prints."""
        return {"outcomes": self.matrix.outcomes(), "sections": self.sections}

    def add(self, packed: dict[str, Any]) -> None:
        for test, client, feature, outcome in packed["outcomes"]:
            self.matrix.record(test, (client, feature), outcome)
        for title, lines in packed["sections"].items():
            self.section(title).extend(lines)


def reports(config: pytest.Config) -> Reports:
    """Those of this run, or of this worker's part of it."""
    return config.stash.setdefault(_KEY, Reports())
