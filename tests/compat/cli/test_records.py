"""`kbroker produce` and `kbroker consume` against a broker."""

import json
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.compat.cli.conftest import COMMAND, TIMEOUT_S, Kbroker

pytestmark = pytest.mark.compat


def test_arguments_and_lines_are_produced_and_consumed(kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "3")
    done = kbroker("produce", name, "a", "b")
    assert (done.out, done.err) == ("", f"produced 2 records to {name}\n")
    kbroker("produce", name, "--quiet", stdin="c\n\nno end")
    assert kbroker("consume", name).lines() == ["", "a", "b", "c", "no end"]


def test_keys_headers_partitions_and_timestamps_arrive(kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "2")
    kbroker("produce", name, "v", "--key", "k", "--header", "h=1", "--header", "h=2", "--partition", "1")
    kbroker("produce", name, "--key-separator", "\\t", "--partition", "1", stdin="k2\tv\t2\n")
    record = {"key": "k3", "value": None, "partition": 1, "timestamp": 1_700_000_000_000}
    kbroker("produce", name, "--json", stdin=json.dumps(record) + "\n")
    output = [json.loads(line) for line in kbroker("consume", name, "--json").out.splitlines()]
    assert [(r["partition"], r["offset"], r["key"], r["value"]) for r in output] == [
        (1, 0, "k", "v"),
        (1, 1, "k2", "v\t2"),
        (1, 2, "k3", None),
    ]
    assert output[0]["headers"] == [{"key": "h", "value": "1"}, {"key": "h", "value": "2"}]
    assert (output[2]["timestamp"], output[2]["timestamp_type"]) == (1_700_000_000_000, "CreateTime")
    assert kbroker("consume", name, "--key-separator", "=").out == "k=v\nk2=v\t2\nk3=\n"


def test_json_round_trip(kbroker: Kbroker, name: str) -> None:
    copy = f"{name}-copy"
    for topic in (name, copy):
        kbroker("topics", "create", topic, "--partitions", "2")
    originals = [
        {"key": "k", "value": "naïve", "headers": [{"key": "h", "value_base64": "/w=="}]},
        {"value_base64": "AP8=", "partition": 1, "timestamp": 5},
        {"key": "gone", "value": None},
    ]
    kbroker("produce", name, "--json", stdin="".join(json.dumps(record) + "\n" for record in originals))
    dump = kbroker("consume", name, "--json").out
    kbroker("produce", copy, "--json", "--compression", "zstd", stdin=dump)
    assert kbroker("consume", copy, "--json").lines() == sorted(dump.replace(name, copy).splitlines())


def test_from_and_to(kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    hours = [{"value": str(hour), "timestamp": int(start.timestamp() + hour * 3600) * 1000} for hour in range(10)]
    kbroker("produce", name, "--json", stdin="".join(json.dumps(record) + "\n" for record in hours))

    def consumed(*options: str) -> str:
        return kbroker("consume", name, *options).out.replace("\n", "")

    assert consumed() == "0123456789"
    assert consumed("--from", "7") == "789"
    assert consumed("--from", "-2") == "89"
    assert consumed("--from", "latest") == ""
    assert consumed("--from", "2", "--to", "4") == "23"
    assert consumed("--count", "3") == "012"
    assert consumed("--from", "@2026-01-01T05:30", "--to", "@2026-01-01T08:00Z") == "67"
    assert consumed("--from", "@2027-01-01") == ""
    assert consumed("--partition", "0", "--from", "9") == "9"


def test_follow_prints_new_records_until_a_signal(kbroker: Kbroker, environment: dict[str, str], name: str) -> None:
    kbroker("topics", "create", name)
    kbroker("produce", name, "before")
    command = [*COMMAND, "consume", name, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline() == b"before\n"
        kbroker("produce", name, "after")
        assert follower.stdout.readline() == b"after\n"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(TIMEOUT_S) == 0
        assert follower.stderr.read() == b""


def test_a_closed_pipe_is_not_an_error_message(kbroker: Kbroker, environment: dict[str, str], name: str) -> None:
    kbroker("topics", "create", name)
    kbroker("produce", name, stdin="x" * 1000 + "\n" + "".join(f"{'y' * 1000}\n" for _ in range(2000)))
    command = [*COMMAND, "consume", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.read(10)
        reader.stdout.close()
        assert reader.wait(TIMEOUT_S) == 1
        assert reader.stderr.read() == b""


def test_a_group_continues_at_its_committed_offsets(kbroker: Kbroker, name: str, group: str) -> None:
    kbroker("topics", "create", name, "--partitions", "2")
    kbroker("produce", name, *"abcde")
    first = kbroker("consume", name, "--group", group, "--count", "2").lines()
    rest = kbroker("consume", name, "--group", group).lines()
    assert len(first) == 2
    assert sorted(first + rest) == list("abcde")
    assert kbroker("consume", name, "--group", group).out == ""
    kbroker("produce", name, "f")
    assert kbroker("consume", name, "--group", group).out == "f\n"


def test_records_are_selected_and_formatted(kbroker: Kbroker, name: str, group: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1", "--config", "segment.bytes=16MiB")
    kbroker("produce", name, "--key-separator", ":", stdin="".join(f"k{n % 3}:value {n}\n" for n in range(12)))
    kbroker("produce", name, "last", "--header", "h=1")
    assert kbroker("consume", name, "--key", "k1", "--count", "2", "--format", r"%o %k %s\n").out == (
        "1 k1 value 1\n4 k1 value 4\n"
    )
    assert kbroker("consume", name, "--grep", "(1|7)$", "--values").out == "value 1\nvalue 7\nvalue 11\n"
    assert kbroker("consume", name, "--header", "h=1", "--grep", "l.st").out == "last\n"
    assert kbroker("consume", name, "--key", "k0", "--from", "4", "--to", "9").out == "value 6\n"
    # The group has read the others, too.
    assert kbroker("consume", name, "--group", group, "--key", "k2", "--count", "1").out == "value 2\n"
    assert kbroker("consume", name, "--group", group, "--grep", "5|3").out == "value 5\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_arrive(kbroker: Kbroker, name: str, codec: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    lines = "".join(f"line {number}\n" for number in range(1000))
    kbroker("produce", name, "--compression", codec, stdin=lines)
    assert kbroker("consume", name).out == lines


def test_a_file_is_produced(kbroker: Kbroker, tmp_path: Path, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "1")
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(20_000)))
    assert kbroker("produce", name, "--file", str(file)).err == f"produced 20000 records to {name}\n"
    assert kbroker("consume", name).out == file.read_text()


def test_errors_are_one_line(kbroker: Kbroker, try_kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "2", "--config", "max.message.bytes=1000")
    for done, reason in (
        (try_kbroker("consume", f"{name}-missing"), f"topic {name}-missing does not exist"),
        (try_kbroker("consume", name, "--partition", "7"), f"topic {name} has no partition 7: it has 2"),
        (try_kbroker("produce", name, "v", "--partition", "7"), f"record 1: topic {name} has no partition 7: it has 2"),
        (try_kbroker("produce", name, "--json", stdin='{"value": "v"}\n{\n'), "record 2: not valid JSON"),
        (try_kbroker("produce", name, "x" * 5000), "(MESSAGE_TOO_LARGE) (0 records acknowledged)"),
    ):
        assert done.status == 1
        assert reason in done.err
        assert done.err.count("\n") == 1
        assert done.out == ""
