"""The checks of the soak fail when something is wrong."""

import threading
from pathlib import Path

import pytest

from tests.compat.crash.background_producers import Ledger
from tests.compat.crash.checks import check_exactly_once
from tests.compat.crash.stored_epochs import StoredEpoch
from tests.compat.soak.faults import Deck, Targets
from tests.compat.soak.progress import Kind, Progress, Stream
from tests.compat.soak.readers import Group
from tests.compat.soak.replicas import check_replicas
from tests.compat.support import eventually


def test_a_group_may_read_again_but_not_skip_a_record_or_read_another_one() -> None:
    group = Group("readers", 1)
    for offset, value in enumerate((b"a", b"b", b"c")):
        group.add(0, offset, value)
    group.add(0, 1, b"b")
    assert group.repeated == 1
    with pytest.raises(AssertionError, match="has skipped 0:3-3"):
        group.add(0, 4, b"e")
    with pytest.raises(AssertionError, match="0:2 was b'c', and is b'd'"):
        group.add(0, 2, b"d")


def test_replicas_must_have_the_same_bytes_in_any_segments(tmp_path: Path) -> None:
    logs = {"one": (b"abc", b"def"), "two": (b"abcdef",), "three": (b"a", b"bcdef")}
    for broker, segments in logs.items():
        directory = tmp_path / broker / "topic-0"
        directory.mkdir(parents=True)
        for number, segment in enumerate(segments):
            (directory / f"{number:020}.log").write_bytes(segment)
    data_dirs = {number: tmp_path / broker for number, broker in enumerate(logs, 1)}
    replicas = {("topic", 0): (1, 2, 3)}
    assert check_replicas(data_dirs, replicas) == 6
    (tmp_path / "three" / "topic-0" / f"{1:020}.log").write_bytes(b"bcdeF")
    with pytest.raises(AssertionError, match=r"topic-0: .*three has 6 bytes, .*; the first 5 are the same"):
        check_replicas(data_dirs, replicas)
    (tmp_path / "three" / "topic-0" / f"{1:020}.log").write_bytes(b"bcde")
    with pytest.raises(AssertionError, match="has 5 bytes"):
        check_replicas(data_dirs, replicas)
    with pytest.raises(AssertionError, match="topic-1 does not exist"):
        check_replicas(data_dirs, {("topic", 1): (1, 2)})


def test_gaps_are_those_of_the_slowest_stream() -> None:
    counts = [0, 0]
    streams = [Stream(f"w{index}", Kind.WRITES, index, lambda index=index: counts[index]) for index in range(2)]
    progress = Progress(streams)
    stopping = threading.Event()

    def advance() -> None:
        while not stopping.wait(0.005):
            counts[0] += 1

    thread = threading.Thread(target=advance)
    thread.start()
    progress.start()
    eventually(lambda: progress.longest_s(Kind.WRITES) > 0.3, "the second stream stands still")
    assert progress.slowest(Kind.WRITES) == "w1"
    counts[1] += 1
    progress.wait_for_all(streams[:1], "of the first", lambda: None)
    progress.begin(streams)
    assert progress.longest_s(Kind.WRITES) < 0.3
    stopping.set()
    thread.join()
    progress.stop()


def test_a_partition_that_stands_still_has_its_own_count() -> None:
    ledger = Ledger("p", 2)
    for partition in (0, 0, 1):
        record, _, _ = ledger.next(partition)
        if partition == 0:
            ledger.complete(record, 0, None)
    assert (ledger.counts, ledger.outstanding_of(0), ledger.outstanding_of(1)) == ([2, 0], 0, 1)


def test_a_second_copy_must_have_a_higher_epoch_of_the_same_producer() -> None:
    ledger = Ledger("p", 1)
    for offset in (1, 2):
        ledger.complete(ledger.next(0)[0], offset, None)
    # The first record is stored twice, at the offsets 0 and 1.
    stored = {(0, 0): [0, 1], (0, 1): [2]}
    with pytest.raises(AssertionError, match="1 records are stored more than once"):
        check_exactly_once(ledger, stored)
    assert check_exactly_once(ledger, stored, lambda _, offset: StoredEpoch(7, offset)) == 1
    for second in (StoredEpoch(7, 3), StoredEpoch(7, 2), StoredEpoch(8, 4), StoredEpoch(-1, -1)):
        epochs = [StoredEpoch(7, 3), second]
        with pytest.raises(AssertionError, match="1 records are stored more than once"):
            check_exactly_once(ledger, stored, lambda _, offset, epochs=epochs: epochs[offset])  # type: ignore[misc]
    assert check_exactly_once(ledger, {(0, 0): [1], (0, 1): [2]}, lambda *_: StoredEpoch(7, 0)) == 0


def test_every_kind_of_fault_comes_once_before_any_comes_again() -> None:
    class FakeCluster:
        """Broker 1 has every role."""

        network = servers = None

        def __getattr__(self, name: str) -> object:
            return lambda *_: [2, 3] if name in ("others", "followers") else 1

    cluster = FakeCluster()
    cluster.network = cluster.servers = cluster  # type: ignore[assignment]
    plans: list[int] = []
    decks = [
        Deck(cluster, Targets("t", 3, "g", "x"), seed, lambda: plans.append(1))  # type: ignore[arg-type]
        for seed in (1, 1, 2)
    ]
    count = len(list(decks[0]._all()))
    dealt = [[deck.next() for _ in range(count)] for deck in decks]
    faults = [[(fault.kind, fault.detail, fault.hold_s) for fault in hand] for hand in dealt]
    assert faults[0] == faults[1] != faults[2]
    assert len({kind for kind, _, _ in faults[0]}) == 22
    assert sum(fault.is_during_plan for hand in dealt for fault in hand) == len(plans) > 0
