"""`kbroker cluster roll` with a cluster whose brokers restart when it asks for that."""

import json
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from kbroker.cli import main
from kbroker.cli.cluster import roll
from kbroker.cli.cluster.roll_steps import (
    NOT_REGISTERED,
    BrokerProcess,
    ClusterView,
    interrupted_by,
    is_restarted,
    obstacles,
    out_of_sync,
    restart_order,
    restart_steps,
)
from kbroker.cli.common.partitions import PartitionHealth
from protocol.messages.k60_describe_cluster import DescribeClusterBroker

Capture = pytest.CaptureFixture[str]
HOUR_MS = 3_600_000
MAX_IDLE_TURNS = 10_000
STARTED_MS = 1_700_000_000_000


class FakeCluster:
    """Three brokers. Each reading is one turn: what `script` says happens before it, and then nothing."""

    def __init__(self) -> None:
        self.processes = {broker: BrokerProcess(broker, STARTED_MS, "1.0") for broker in (1, 2, 3)}
        self.partitions = {
            ("t", number): PartitionHealth(number, (number, number % 3 + 1), (number, number % 3 + 1), 1)
            for number in (1, 2, 3)
        }
        self.controller = 2
        self.turns: list[Callable[[], None]] = []
        self.is_responding = True
        self.asked_first: list[list[int]] = []
        self._epoch = 10
        self._idle_turns = 0

    def read(self, ask_first: Iterable[int] = ()) -> ClusterView | None:
        self.asked_first.append(list(ask_first))
        if self.turns:
            self.turns.pop(0)()
        else:
            self._idle_turns += 1
            assert self._idle_turns < MAX_IDLE_TURNS, "it waits for something that does not come"
        brokers = {broker: DescribeClusterBroker(host=f"host-{broker}", port=9092) for broker in (1, 2, 3)}
        view = ClusterView(self.controller, brokers, dict(self.processes), dict(self.partitions))
        return view if self.is_responding else None

    def stop(self, broker: int) -> None:
        del self.processes[broker]
        for key, part in self.partitions.items():
            isr = [replica for replica in part.isr if replica != broker]
            self.partitions[key] = part._replace(isr=isr, leader=isr[0] if isr else -1)

    def start(self, broker: int) -> None:
        self._epoch += 1
        self.processes[broker] = BrokerProcess(self._epoch, STARTED_MS + self._epoch * HOUR_MS, "2.0")

    def join(self) -> None:
        for key, part in self.partitions.items():
            self.partitions[key] = part._replace(isr=part.replicas, leader=part.replicas[0])

    def restart(self, broker: int) -> list[Callable[[], None]]:
        """Return the turns of a restart, from the command to the in-sync replicas."""
        return [lambda: self.stop(broker), lambda: self.start(broker), lambda: None, self.join]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr(roll, "Observer", lambda bootstrap: cluster)
    monkeypatch.setattr(roll, "EVERY_S", 0.0)
    return cluster


def nothing() -> None:
    pass


def test_brokers_are_restarted_one_after_the_other(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.turns = [nothing, nothing, *(turn for broker in (1, 3, 2) for turn in cluster.restart(broker))]
    assert main(["cluster", "roll", "--yes", "--command", "restart {id} {host}:{port}{rack}"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == ["restart 1 host-1:9092", "restart 3 host-3:9092", "restart 2 host-2:9092"]
    notes = output.err.splitlines()
    assert notes[0] == "1 of 3: restart broker 1 at host-1:9092"
    assert notes[1] == "broker 1 is away"
    assert notes[2].startswith("broker 1 is back: version 2.0, started 20")
    assert notes[3] == "waiting until 2 partitions have all replicas in sync"
    assert notes[4].startswith("all replicas are in sync after ")
    assert notes[5] == "2 of 3: restart broker 3 at host-3:9092"
    assert notes[-1].startswith("restarted 3 brokers in ")
    # The broker that was restarted knows best which replicas are in sync.
    assert cluster.asked_first[-1] == [2]


def test_the_default_command(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.turns = [nothing, nothing, *cluster.restart(3)]
    assert main(["cluster", "roll", "3", "--yes"]) == 0
    assert capsys.readouterr().out == "ssh host-3 sudo systemctl restart kbroker\n"


def test_a_dry_run_shows_the_order(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["cluster", "roll", "--dry-run", "--command", "r{id}"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "STEP", "BROKER", "ADDRESS", "RACK", "STATE", "STARTED", "VERSION", "LEADS", "INTERRUPTS", "COMMAND"
    ]  # fmt: skip
    assert [(row.split()[1], row.split()[-1]) for row in rows] == [("1", "r1"), ("3", "r3"), ("2", "r2")]
    assert main(["cluster", "roll", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["obstacles"] == []
    assert document["brokers"][0] == {
        "step": 1,
        "broker": 1,
        "address": "host-1:9092",
        "rack": None,
        "state": "running",
        "started_ms": STARTED_MS,
        "version": "1.0",
        "leads": 1,
        "interrupts": 0,
        "command": "ssh host-1 sudo systemctl restart kbroker",
    }


def test_each_event_is_a_line_of_json(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.turns = [nothing, nothing, *cluster.restart(1)]
    assert main(["cluster", "roll", "1", "--yes", "--json"]) == 0
    output = capsys.readouterr()
    events = [json.loads(line) for line in output.out.splitlines()]
    assert [event["event"] for event in events] == ["restart", "away", "restarted", "waiting", "in_sync", "complete"]
    assert events[0]["command"] == "ssh host-1 sudo systemctl restart kbroker"
    assert events[2] == {
        "event": "restarted", "broker": 1, "epoch": 11, "started_ms": STARTED_MS + 11 * HOUR_MS, "version": "2.0"
    }  # fmt: skip
    assert output.err == ""


def test_it_is_refused_while_a_broker_is_away(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.stop(3)
    cluster.partitions["t", 9] = PartitionHealth(-1, (3,), (), 1)
    for options in (["--dry-run"], ["--yes"]):
        assert main(["cluster", "roll", *options]) == 1
        assert capsys.readouterr().err.splitlines() == [
            "kbroker: broker 3 is away",
            "kbroker: 1 partition without a leader",
            "kbroker: 1 partition with too few in-sync replicas",
            "kbroker: a rolling restart would make this worse: see kbroker topics describe --under-min-isr --offline",
        ]
    # What was broken before is not awaited.
    cluster.turns = [nothing, nothing, *cluster.restart(1), *cluster.restart(2)]
    assert main(["cluster", "roll", "--yes", "--force", "--command", "{id}"]) == 0
    assert capsys.readouterr().out.split() == ["1", "2"]


def test_partitions_that_refuse_writes_meanwhile_are_announced(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.partitions["t", 1] = PartitionHealth(1, (1, 2), (1, 2), 2)
    assert main(["cluster", "roll", "--dry-run"]) == 0
    output = capsys.readouterr()
    assert [row.split()[-7] for row in output.out.splitlines()[1:]] == ["1", "0", "1"]
    assert output.err.startswith("2 brokers cannot be restarted without interrupting writes to partitions")


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        (["7"], 1, "there is no broker 7"),
        (["--command", "restart {name}"], 2, "--command: only {id}, {host}, {port} and {rack} are replaced"),
        (["--command", "restart {"], 2, "--command: only"),
        (["--since", "yesterday"], 2, "expected a time"),
        (["--restart-timeout", "soon"], 2, "expected a duration"),
    ],
)
def test_wrong_options(cluster: FakeCluster, capsys: Capture, options: list[str], status: int, reason: str) -> None:
    assert main(["cluster", "roll", "--yes", *options]) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert reason in output.err


def test_an_interrupt_says_how_to_continue(cluster: FakeCluster, capsys: Capture) -> None:
    def interrupt() -> None:
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)

    cluster.turns = [nothing, nothing, *cluster.restart(1), interrupt]
    assert main(["cluster", "roll", "1", "3", "--yes"]) == 130
    note = capsys.readouterr().err.splitlines()[-1]
    assert note.startswith("to continue: kbroker cluster roll --since 20")
    assert note.endswith("Z 1 3")


def test_it_continues_with_the_brokers_that_were_not_restarted(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.start(1)
    since = str(STARTED_MS + 1)
    cluster.turns = [nothing, nothing, *cluster.restart(3)]
    assert main(["cluster", "roll", "1", "3", "--yes", "--command", "{id}", "--since", since]) == 0
    assert capsys.readouterr().out == "3\n"


def test_nothing_is_left_to_restart(cluster: FakeCluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for nothing, waits until all replicas are in sync, and says that the rolling restart is done."""
    monkeypatch.setattr(roll, "confirm", lambda question, yes: pytest.fail(question))
    for broker in (1, 2, 3):
        cluster.start(broker)
    since = ["--since", str(STARTED_MS + 1)]
    assert main(["cluster", "roll", "--dry-run", *since]) == 0
    assert capsys.readouterr().err == "no broker is left to restart\n"
    assert main(["cluster", "roll", *since]) == 0
    assert capsys.readouterr().err == "no broker is left to restart, and all replicas are in sync\n"
    cluster.stop(3)
    cluster.turns = [nothing, nothing, lambda: cluster.start(3), cluster.join]
    assert main(["cluster", "roll", *since]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[:2] == ["broker 3 is away", "waiting until 2 partitions have all replicas in sync"]
    assert output.err.splitlines()[-1] == "no broker is left to restart, and all replicas are in sync"


def test_a_restart_has_a_deadline(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["cluster", "roll", "--yes", "--restart-timeout", "1ms"]) == 1
    *_, resume, error = capsys.readouterr().err.splitlines()
    assert resume.startswith("to continue: kbroker cluster roll --since ")
    assert error == "kbroker: given up after 1ms: not restarted: broker 1"


def test_replicas_that_do_not_catch_up_have_a_deadline(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.turns = [nothing, nothing, *cluster.restart(1)[:2]]
    assert main(["cluster", "roll", "--yes", "--sync-timeout", "1ms"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "kbroker: given up after 1ms: 2 partitions not in sync"
    cluster.turns = [cluster.join, lambda: setattr(cluster, "is_responding", False)]
    assert main(["cluster", "roll", "--yes", "--sync-timeout", "1ms"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "kbroker: given up after 1ms: no broker responds"


def test_a_broker_that_fails_meanwhile_is_awaited(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.turns = [
        nothing, nothing, lambda: cluster.stop(3), *cluster.restart(1)[:2], lambda: cluster.start(3), cluster.join
    ]  # fmt: skip
    assert main(["cluster", "roll", "1", "--yes"]) == 0
    assert "broker 3 is away, and it is not its turn" in capsys.readouterr().err.splitlines()


def test_a_broker_that_is_restarted_out_of_turn_is_not_asked_for(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.turns = [nothing, nothing, *cluster.restart(3), *cluster.restart(1), *cluster.restart(2)]
    assert main(["cluster", "roll", "--yes", "--command", "{id}"]) == 0
    assert capsys.readouterr().out.split() == ["1", "2"]


def test_an_expired_session_is_no_restart(cluster: FakeCluster, capsys: Capture) -> None:
    def expire() -> None:
        cluster.processes[1] = cluster.processes[1]._replace(epoch=NOT_REGISTERED)

    def rejoin() -> None:
        cluster.processes[1] = cluster.processes[1]._replace(epoch=9)

    cluster.turns = [nothing, nothing, expire, rejoin, *cluster.restart(1)]
    assert main(["cluster", "roll", "1", "--yes"]) == 0
    assert next(line for line in capsys.readouterr().err.splitlines() if "is back" in line).startswith(
        "broker 1 is back: version 2.0"
    )


def view(
    racks: dict[int, str | None], controller: int, *partitions: PartitionHealth, away: tuple[int, ...] = ()
) -> ClusterView:
    return ClusterView(
        controller,
        {broker: DescribeClusterBroker(host=f"host-{broker}", port=9092, rack=rack) for broker, rack in racks.items()},
        {broker: BrokerProcess(broker, 1000, "1.0") for broker in racks if broker not in away},
        {("t", number): part for number, part in enumerate(partitions)},
    )


def part(*replicas: int, isr: tuple[int, ...] | None = None, min_isr: int = 1) -> PartitionHealth:
    in_sync = replicas if isr is None else isr
    return PartitionHealth(in_sync[0] if in_sync else -1, replicas, in_sync, min_isr)


@pytest.mark.parametrize(
    ("racks", "controller", "expected"),
    [
        ({1: None, 2: None, 3: None}, 1, [2, 3, 1]),
        ({1: None, 2: None, 3: None}, -1, [1, 2, 3]),
        # Racks one after the other, and the controller's rack last.
        ({1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}, 2, [1, 4, 3, 6, 5, 2]),
        ({1: "b", 2: None, 3: "a", 4: "b"}, 3, [1, 4, 2, 3]),
    ],
)
def test_racks_follow_one_another_and_the_controller_is_last(
    racks: dict[int, str | None], controller: int, expected: list[int]
) -> None:
    assert restart_order(view(racks, controller).brokers, racks, controller) == expected


def test_one_at_a_time_by_default() -> None:
    assert restart_steps(view({1: "a", 2: "a", 3: "b"}, 3), [1, 2, 3], 1) == [(1,), (2,), (3,)]


def test_brokers_of_a_rack_are_restarted_together() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    partitions = [part(1, 3, 5, min_isr=2), part(2, 4, 6, min_isr=2), part(1, 4, 6, min_isr=2)]
    assert restart_steps(view(racks, 5, *partitions), racks, 2) == [(1, 2), (3, 4), (6,), (5,)]


def test_brokers_that_share_a_partition_are_not_restarted_together() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(1, 5))
    assert restart_steps(view(racks, 4, part(1, 2, 3, min_isr=2)), racks, 3) == [(1,), (2,), (3,), (4,)]
    # Unless enough replicas are left.
    assert restart_steps(view(racks, 4, part(1, 2, 3, 4, min_isr=2)), racks, 3) == [(1, 2), (3,), (4,)]
    # A replica that is not in sync is none of them.
    lacking = part(1, 2, 3, 4, isr=(1, 2, 3), min_isr=2)
    assert restart_steps(view(racks, 4, lacking), racks, 3) == [(1,), (2,), (3,), (4,)]
    assert restart_steps(view(racks, 4, part(2, 3)), racks, 3) == [(1, 2), (3,), (4,)]


def test_only_the_chosen_brokers() -> None:
    assert restart_steps(view({1: None, 2: None, 3: None}, 1), [3, 1], 2) == [(3,), (1,)]
    assert restart_steps(view({1: None}, 1), [], 2) == []


def test_partitions_that_refuse_writes_meanwhile() -> None:
    partitions = view({1: None}, 1, part(1), part(1, 2, min_isr=2), part(1, 2), part(2, 3, isr=())).partitions
    assert interrupted_by(partitions, {1}) == [("t", 0), ("t", 1)]
    # min.insync.replicas is at most the number of replicas (KAFKA-15583).
    assert interrupted_by({("t", 0): part(1, 2, min_isr=3)}, {2}) == [("t", 0)]


def test_obstacles() -> None:
    assert obstacles(view({1: None, 2: None}, 1, part(1, 2, isr=(1,)))) == []
    partitions = [part(1, 2, isr=(1,), min_isr=2), part(2, isr=()), part(2, 1, isr=())]
    assert obstacles(view({1: None, 2: None}, -1, *partitions, away=(2,))) == [
        "broker 2 is away",
        "there is no controller",
        "2 partitions without a leader",
        "3 partitions with too few in-sync replicas",
    ]
    fenced = view({1: None}, 1)._replace(processes={1: BrokerProcess(NOT_REGISTERED, 1000, "1.0")})
    assert obstacles(fenced) == ["broker 1 is away"]


@pytest.mark.parametrize(
    ("epoch", "started_ms", "expected"),
    [
        (7, 1000, False),
        # Its session has expired, but it is the same process.
        (8, 1000, False),
        # It has started, and the controller has not unfenced it yet.
        (NOT_REGISTERED, 2000, False),
        (7, 2000, False),
        (8, 2000, True),
        # Its clock was set back.
        (8, 500, True),
    ],
)
def test_a_restart_is_another_process_with_a_new_epoch(epoch: int, started_ms: int, expected: bool) -> None:
    after = view({1: None}, 1)._replace(processes={1: BrokerProcess(epoch, started_ms, "1.0")})
    assert is_restarted(BrokerProcess(7, 1000, "1.0"), after, 1) == expected


def test_a_broker_that_is_away_was_not_restarted() -> None:
    assert not is_restarted(BrokerProcess(7, 1000, "1.0"), view({1: None}, 1, away=(1,)), 1)


def test_partitions_that_are_awaited() -> None:
    partitions = [part(1, 2), part(1, 2, isr=(1,)), part(1, 2, isr=()), part(1, 2, isr=(2, 1))]
    found = view({1: None, 2: None}, 1, *partitions)
    assert out_of_sync(found) == [("t", 1), ("t", 2)]
    assert out_of_sync(found, [("t", 2)]) == [("t", 1)]
