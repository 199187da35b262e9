"""scripts/bench --capacity: what it sends is right, and each case runs against a broker."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.messages.k00_produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from protocol.messages.k01_fetch import FetchRequest
from protocol.records.batch import HEADER_SIZE, crc_of, parse_header
from protocol.schema.codec import encode
from scripts.benchmark.capacity import growth, requests, syscalls
from scripts.benchmark.capacity.__main__ import chosen_cases, peers_of
from scripts.benchmark.capacity.cases import (
    PARTITIONS,
    Case,
    all_cases,
    init_producer_id,
    metadata,
    produce_load,
    rotated,
)
from scripts.benchmark.capacity.client import Load, connected
from scripts.benchmark.capacity.measure import PROCESSOR, RATE, heading, measure, results_of, row, run_rounds
from scripts.benchmark.capacity.server import Server, started
from scripts.benchmark.peers import ROOT, Kbroker

TOPIC = ("topic", bytes(range(16)))
SECONDS = 0.02


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    with started([("kbroker", Kbroker(tmp_path_factory.mktemp("bench")))]) as [server]:
        yield server


@pytest.fixture(scope="module")
def newest(server: Server) -> Server:
    return Server(server.peer, "kbroker", newest_versions=True)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_each_case_runs(case: Case, server: Server) -> None:
    figures = measure(server, case, SECONDS)
    assert figures[RATE] > 0
    assert figures["p50"] <= figures["p99"]


@pytest.mark.parametrize(
    "name", ["produce 1 record", "transactional produce 16 KiB", "fetch 1 MiB", "metadata", "offset commit"]
)
def test_a_case_runs_in_the_newest_versions(name: str, newest: Server) -> None:
    [case] = [case for case in all_cases() if case.name == name]
    assert measure(newest, case, SECONDS)[RATE] > 0


def test_a_case_that_fails_is_left_out(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def failing(server: Server) -> Iterator[Load]:
        raise SystemExit("no reason")
        yield

    cases = [Case("failing", failing), Case("metadata", metadata)]
    figures = run_rounds([("first", server), ("second", server)], cases, 2, SECONDS)
    assert list(figures) == ["metadata"]
    assert [len(figures["metadata"][column]["p50"]) for column in ("first", "second")] == [2, 2]
    assert "left out: no reason" in capsys.readouterr().err


def test_each_record_is_in_the_log(server: Server) -> None:
    """Every response stands for a batch that the broker has appended, in the order of its sequences."""
    records, connections = 3, 4
    with server.topic(PARTITIONS) as topic:
        producers = [(init_producer_id(server, None), None) for _ in range(connections)]
        load = produce_load(topic, producers, records, 100, 5, 9)
        with connected(server.peer.port, load, SECONDS) as client:
            responses = client.run().responses
        # And one batch of each connection when it was opened.
        assert sum(server.offsets(topic[0], range(PARTITIONS))) == (responses + connections) * records


def test_an_error_in_a_response_ends_the_run(server: Server) -> None:
    version = 9
    frame = requests.produce_frame(("no-such-topic", bytes(16)), 0, requests.batch(1, 10), version)
    load = Load([[frame]], 1, requests.produce_error_at(("no-such-topic", bytes(16)), version))
    with pytest.raises(SystemExit, match="error code 3 "), connected(server.peer.port, load, SECONDS) as client:
        client.run()


def test_responses_are_limited(server: Server) -> None:
    with server.topic(1) as topic:
        frame = requests.produce_frame(topic, 0, requests.batch(1, 10), 9)
        with connected(server.peer.port, Load([[frame]], 1), 60, responses=5) as client:
            assert client.run().responses == 5
        assert server.offsets(topic[0], [0]) == [6]


def test_crc_is_right_after_the_sequence_has_changed() -> None:
    batch = requests.batch(2, 50, (7, 0))
    frame = requests.produce_frame(TOPIC, 0, batch, 9)
    counter = requests.sequence_counter(frame, batch, 2)
    changed = bytearray(frame[4:])
    sequence = 0x5A5A_1234
    changed[counter.at : counter.at + 4] = sequence.to_bytes(4, "big")
    crc = int.from_bytes(changed[counter.crc_at : counter.crc_at + 4], "big")
    for bit, mask in enumerate(counter.masks):
        if sequence >> bit & 1:
            crc ^= mask
    records = changed[counter.at - requests.SEQUENCE_AT :][: len(batch)]
    header = parse_header(records)
    assert (header.base_sequence, header.producer_id, header.count) == (sequence, 7, 2)
    assert len(records) > HEADER_SIZE
    assert crc == crc_of(records, 0, len(records))


@pytest.mark.parametrize("version", [8, 9, 13])
def test_error_position(version: int) -> None:
    partition = PartitionProduceResponse(index=0, error_code=0x1234)
    topic = TopicProduceResponse(name=TOPIC[0], topic_id=TOPIC[1], partition_responses=[partition])
    header = 5 if version >= 9 else 4
    response = bytes(header) + encode(ProduceResponse(responses=[topic]), version)
    at = requests.produce_error_at(TOPIC, version)
    assert response[at : at + 2] == b"\x12\x34"


@pytest.mark.parametrize("version", [11, 12, 17])
def test_session_epoch_position(version: int) -> None:
    frame = requests.frame(FetchRequest(session_epoch=0x01020304), version)
    at = 4 + requests.session_epoch_at(version)
    assert frame[at : at + 4] == b"\1\2\3\4"


def test_connections_begin_with_different_frames() -> None:
    assert rotated([b"a", b"b", b"c"], 4) == [
        [b"a", b"b", b"c"],
        [b"b", b"c", b"a"],
        [b"c", b"a", b"b"],
        [b"a", b"b", b"c"],
    ]


def test_table() -> None:
    case = all_cases()[0]
    names = ("responses/s", "processor time per response", "user time per response", "system time per response",
             "throughput", "p50", "p99", "client's processor time per response")  # fmt: skip
    figures = {
        "kbroker": {name: [30.0, 10.0, 20.0] for name in names},
        "kafka": {name: [40.0, 40.0, 40.0] for name in names},
        "control": {name: [40.0, 50.0, 40.0] for name in names},
    }
    results = results_of(case, figures, "kbroker", "kafka")
    assert (results[RATE]["ratio"], results[RATE]["met"], results[RATE]["bound"]) == (0.5, False, 1.4)
    assert results[PROCESSOR]["met"] is False
    line = row(case, results, "kbroker", "kafka", control=True)
    assert line.startswith("| produce 64 KiB of 100 B | 20 / 40 | **0.50** (≥ 1.40) | 20 (20 + 20) / 40 (40 + 40) |")
    assert line.count("|") == heading(list(figures)).splitlines()[0].count("|")
    published = row(case, results, "kbroker", "kafka")
    assert published.count("|") == heading(["kbroker", "kafka"]).splitlines()[0].count("|")
    alone = results_of(case, {"kbroker": figures["kbroker"]}, "kbroker", "")
    assert row(case, alone, "kbroker", "").count("|") == heading(["kbroker"]).splitlines()[0].count("|")


def test_summary_of_strace() -> None:
    text = (
        "% time     seconds  usecs/call     calls    errors syscall\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        " 60.00    0.000600           1       600           write\n"
        " 40.00    0.000400           2       200        10 read\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        "100.00    0.001000           1       800        10 total\n"
    )
    assert syscalls.parse_summary(text) == {"write": 600, "read": 200}


@pytest.mark.parametrize("series", growth.SERIES, ids=lambda series: f"{series.title}, {series.unit}")
def test_smallest_size_of_each_growth_series_runs(series: growth.Series, server: Server) -> None:
    case = Case(series.title, series.prepare(series.sizes[0]))
    assert measure(server, case, SECONDS)[RATE] > 0


def test_growth_table() -> None:
    sessions = growth.SERIES[1]
    costs = {sessions.title: dict(zip(sessions.sizes, (20.0, 21.0, 22.0, 40.0), strict=True))}
    line = growth.table(costs).splitlines()[-1]
    assert line.startswith(f"| {sessions.title} | idle partitions 10: 20, 100: 21, 1,000: 22,")
    assert line.endswith("| 2.00 |")


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ([], ["kbroker", "kafka"]),
        (["."], [ROOT.name]),
        ([".", "."], [ROOT.name, f"{ROOT.name} 2"]),
        (["new=.", "old=."], ["new", "old"]),
    ],
)
def test_servers_of_the_options(
    options: list[str], labels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert [label for label, _ in peers_of(tmp_path, options)] == labels


def test_a_tree_without_kbroker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not a source tree of kbroker"):
        peers_of(tmp_path, [str(tmp_path)])


def test_cases_are_chosen_by_parts_of_their_names() -> None:
    assert [case.name for case in chosen_cases(["500", "heartbeat"])] == [
        "heartbeat",
        "produce 1 record, 500 connections",
    ]
    with pytest.raises(SystemExit, match="no case has such a name; there are: produce 64 KiB"):
        chosen_cases(["no such case"])
