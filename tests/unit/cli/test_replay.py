"""`kbroker replay`: wrong usage is reported before the archive or Spark is opened."""

import pytest

from kbroker.cli import main


def run_replay(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Run `kbroker replay`, and return the exit status and standard error."""
    return main(["replay", *args]), capsys.readouterr().err


def test_an_unknown_codec_is_wrong_usage(capsys):
    status, error = run_replay(capsys, "nowhere", "orders", "-z", "foo")
    assert (status, error) == (2, "kbroker: --compression must be one of none, gzip, snappy, lz4, zstd, not 'foo'\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "name at least one TOPIC to replay"),
        (["orders", "--to", "a", "--prefix", "b"], "--to and --prefix exclude each other"),
        (["orders", "--rate", "5", "--speed", "1"], "--rate and --speed exclude each other"),
        (["orders", "--rate", "0"], "--rate must be a positive number, not 0"),
        (["orders", "--speed", "-1"], "--speed must be a positive number, not -1"),
        (["orders", "--partitions-by", "value"], "--partitions-by must be partition or key, not 'value'"),
        (["orders", "--from", "1m", "--until", "1h"], "--from must be before --until"),
        (["orders", "--offsets", "5-7"], "an offset range must be PARTITION:START-END, not '5-7'"),
        (["orders", "--offsets", "0:7-5"], "the offset range 0:7-5 is empty: END is exclusive"),
        (["orders", "--group-prefix", "new-"], "--group-prefix requires --restore-groups"),
    ],
)
def test_wrong_usage(capsys, args: list[str], message: str):
    assert run_replay(capsys, "nowhere", *args) == (2, f"kbroker: {message}\n")


@pytest.mark.parametrize(
    ("args", "excluded"),
    [
        (["orders"], "TOPIC"),
        (["--to", "other"], "--to"),
        (["--prefix", "again-"], "--prefix"),
        (["--append"], "--append"),
        (["--partitions-by", "partition"], "--partitions-by"),  # also with its default
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
def test_resume_excludes_what_the_plan_has(capsys, args: list[str], excluded: str):
    status, error = run_replay(capsys, "nowhere", "--resume", "abc", *args)
    assert status == 2
    assert error == f"kbroker: --resume continues a replay with the options of its start and excludes {excluded}\n"


def test_resume_accepts_the_options_of_a_run(capsys, tmp_path):
    args = ["--rate", "5", "--broker-wait", "1m", "--json", "-b", "localhost:9", "--master", "local", "--conf", "a=b"]
    status, error = run_replay(capsys, str(tmp_path), "--resume", "abc", *args)
    assert status == 1
    assert "excludes" not in error
