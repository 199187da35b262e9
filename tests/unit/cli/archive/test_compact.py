"""`kbroker archive compact`, as far as it needs no Spark."""

import pytest

from kbroker.cli.archive.compact import parse_target_size
from kbroker.cli.common.errors import CliError


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("128MiB", 2**27), ("128mb", 2**27), ("1.5 G", 3 * 2**29), ("64k", 2**16)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_target_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1x", "1e9", "MiB", "4095", "2TiB"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(CliError):
        parse_target_size(text)
