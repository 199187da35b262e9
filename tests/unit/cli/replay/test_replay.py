"""`kbroker replay`: what makes no sense is wrong usage, told before anything is looked at. No Spark."""

import pytest

from kbroker.cli import main


def told(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    return main(["replay", *args]), capsys.readouterr().err


def test_a_codec_that_there_is_not_is_wrong_usage(capsys):
    status, error = told(capsys, "nowhere", "orders", "-z", "foo")
    assert (status, error) == (2, "kbroker: --compression is one of none, gzip, snappy, lz4, zstd, not 'foo'\n")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["orders"], "TOPIC"),
        (["--to", "other"], "--to"),
        (["--prefix", "again-"], "--prefix"),
        (["--append"], "--append"),
        (["--partitions-by", "partition"], "--partitions-by"),  # the default, but given
        (["--config", "retention.ms=-1"], "--config"),
        (["--from", "1h", "--until", "1m"], "--from, --until"),
        (["--offsets", "0:1-2"], "--offsets"),
        (["-p", "3"], "--partition"),
        (["--key", "k"], "--key"),
        (["--key-regex", "k"], "--key-regex"),
        (["-H", "name"], "--header"),
        (["--no-origin-headers"], "--origin-headers"),
        (["-z", "lz4"], "--compression"),
        (["--restore-groups", "all", "--group-prefix", "new-"], "--restore-groups, --group-prefix"),
        (["--dry-run"], "--dry-run"),
        (["--new"], "--new"),
    ],
)
def test_what_would_not_act_is_not_taken_with_resume(capsys, given: list[str], named: str):
    status, error = told(capsys, "nowhere", "--resume", "abc", *given)
    assert status == 2
    assert error == f"kbroker: --resume goes on with a replay as it was begun: it goes without {named}\n"


def test_what_acts_is_taken_with_resume(capsys, tmp_path):
    acting = ["--rate", "5", "--broker-wait", "1m", "--json", "-b", "localhost:9", "--master", "local", "--conf", "a=b"]
    status, error = told(capsys, str(tmp_path), "--resume", "abc", *acting)
    assert status == 1
    assert "goes without" not in error
