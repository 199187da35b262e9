"""`kbroker replay`: what makes no sense is wrong usage, told before anything is looked at. No Spark."""

import pytest

from kbroker.cli import main


def told(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    return main(["replay", *args]), capsys.readouterr().err


def test_a_codec_that_there_is_not_is_wrong_usage(capsys):
    status, error = told(capsys, "nowhere", "orders", "-z", "foo")
    assert (status, error) == (2, "kbroker: --compression is one of none, gzip, snappy, lz4, zstd, not 'foo'\n")
