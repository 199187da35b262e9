"""What tests of the pipeline's files share."""

import os

import pytest


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk: hundreds of commits are made to look at what they say."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
