"""What tests of the pipeline's files share."""

import os

import pytest


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncs, since a test makes hundreds of commits and checks only their content."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
