"""The option --rewrite of the transcript tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what the transcripts print now into their files")
