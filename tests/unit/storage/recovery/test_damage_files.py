"""Each file except the log lost or damaged, after each kind of shutdown.

All records are read, by offset and by timestamp, no retry is stored twice, and the log says what was repaired. A file
may also be well-formed and wrong: where it contradicts the log, the log counts.
"""

from collections.abc import Callable
from struct import pack

import pytest
from crc32c import crc32c

from kbroker.storage.log.log import Log
from tests.unit.support.damaged_log import (
    PRODUCER,
    RECORDS,
    LogCopy,
    Written,
    check_reads,
    idempotent,
    is_out_of_order,
    memory_lab,
    noise,
    send_again,
    write,
)
from tests.unit.support.log_lab import NOW, TOPIC_ID, append, content

BATCHES = 40
ROLLS = (14, 29)
CHECKPOINT = 33
LAST = RECORDS * BATCHES

Damage = Callable[[bytes], bytes | None]


def entries(*rows: tuple[int, int], form: str = ">ii") -> Damage:
    """Replace the file by a well-formed one with these entries."""
    return lambda _: b"".join(pack(form, *row) for row in rows)


def snapshot(last_sequence: int, last_offset: int, *, version: int = 1, spoilt: int = 0) -> Damage:
    """Replace the file by a producer snapshot, with a valid CRC unless it is `spoilt`."""
    body = pack(">i", 1) + pack(">qhiqiqiq", PRODUCER, 0, last_sequence, last_offset, RECORDS - 1, NOW, -1, -1)
    return lambda _: pack(">hI", version, crc32c(body) ^ spoilt) + body


ANY: dict[str, Damage] = {
    "gone": lambda _: None,
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "less by a byte": lambda data: data[:-1],
    "noise": lambda data: noise(max(len(data), 24), "noise"),
    "zeros": lambda data: bytes(max(len(data), 24)),
    "ones": lambda data: b"\xff" * max(len(data), 24),
    "longer": lambda data: data + noise(24, "longer"),
}
INDEX: dict[str, Damage] = {
    "offsets too high": entries((5, 300), (1 << 30, 600)),
    "offsets too low": entries((1, 1500), (2, 1800)),
    "positions too high": entries((8, 300), (14, 1 << 30)),
    "positions between batches": entries((8, 333), (14, 777)),
    "negative": entries((-8, 300), (-7, 600)),
    "descending": entries((14, 624), (8, 416)),
}
TIMES: dict[str, Damage] = {
    "timestamps too high": entries((NOW + 10**9, 8), (NOW + 10**10, 14), form=">qi"),
    "timestamps too low": entries((1, 8), (2, 14), form=">qi"),
    "offsets too high": entries((NOW, 5), (NOW + 1, 1 << 30), form=">qi"),
    "negative": entries((-5, 8), (-4, 14), form=">qi"),
    "descending": entries((NOW + 70, 8), (NOW + 40, 14), form=">qi"),
}
SNAPSHOT: dict[str, Damage] = {
    "another version": snapshot(LAST - 1, LAST - 1, version=7),
    "a wrong CRC": snapshot(LAST - 1, LAST - 1, spoilt=1),
    "of the future": snapshot(10 * LAST - 1, 10 * LAST - 1),
}
EPOCHS: dict[str, Damage] = {
    "another version": lambda _: b"7\n1\n0 0\n",
    "negative": lambda _: b"0\n1\n-3 -5\n",
    "too few": lambda _: b"0\n5\n0 0\n",
    "descending": lambda _: b"0\n2\n5 0\n3 12\n",
    "beyond the end": lambda _: b"0\n2\n0 0\n9 999999\n",
    "no numbers": lambda _: b"0\n1\nx y\n",
}
METADATA: dict[str, Damage] = {
    "another version": lambda data: data.replace(b"version: 0", b"version: 9"),
    "no id": lambda _: b"version: 0\ntopic_id: !!\n",
}
STOPS = ["stopped", "killed", "killed and no checkpoint left"]


def killed_log() -> tuple[LogCopy, Written]:
    """Return three segments, with a checkpoint and some more batches in the last one."""
    lab = memory_lab(index_interval_bytes=200)
    log = lab.open()
    written = write(log, BATCHES, roll_at=ROLLS, checkpoint_at=CHECKPOINT)
    return LogCopy(lab), written


def stopped_log() -> tuple[LogCopy, Written]:
    lab = memory_lab(index_interval_bytes=200)
    log = lab.open()
    written = write(log, BATCHES, roll_at=ROLLS, checkpoint_at=CHECKPOINT)
    assert lab.close(log)
    return LogCopy(lab), written


def check(copy: LogCopy, written: Written, name: str, damage: Damage, stop: str) -> list[str]:
    """Open the damaged directory and check the log; returns what was repaired."""
    point = {"stopped": LAST, "killed": RECORDS * (CHECKPOINT + 1)}.get(stop, 0)
    lab = copy.make(**{name: damage(copy.files[name])})
    log = lab.open(point, stop == "stopped")
    repairs = log.repairs
    assert (log.log_start_offset, log.log_end_offset) == (0, LAST)
    assert content(log) == written.data
    check_reads(log, written)
    assert is_out_of_order(log, BATCHES + 1)
    send_again(log, written, BATCHES - 5)
    assert log.log_end_offset == LAST
    check_append(log, name)
    log.durability.checkpoint()
    assert lab.close(log)
    reopened = lab.open(log.log_end_offset, True)
    assert (reopened.repairs, reopened.log_end_offset) == ([], LAST + RECORDS)
    check_reads(reopened, written)
    return repairs


def check_append(log: Log, name: str) -> None:
    assert append(log, idempotent(BATCHES), epoch=BATCHES // 4) == LAST
    if name != "leader-epoch-checkpoint":
        assert log.epochs.entries == [(epoch, 12 * epoch) for epoch in range(BATCHES // 4 + 1)]
    assert (log.epochs.latest, log.topic_id) == (BATCHES // 4, TOPIC_ID)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("segment", [0, 1, 2], ids=["first", "second", "last"])
@pytest.mark.parametrize(("suffix", "damages"), [("index", INDEX), ("timeindex", TIMES), ("snapshot", SNAPSHOT)])
def test_a_damaged_file_of_a_segment(suffix: str, damages: dict[str, Damage], segment: int, stop: str) -> None:
    copy, written = stopped_log() if stop == "stopped" else killed_log()
    names = sorted(name for name in copy.files if name.endswith(f".{suffix}"))
    # By offset. A snapshot is at the end of its segment.
    name = names[segment]
    for kind, damage in {**ANY, **damages}.items():
        try:
            repairs = check(copy, written, name, damage, stop)
        except AssertionError as error:
            raise AssertionError(f"{name} {kind}, {stop}") from error
        if suffix == "snapshot" and segment == 2 and kind != "gone" and stop != STOPS[2]:
            assert any(name in line for line in repairs), kind


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("name", "damages"), [("leader-epoch-checkpoint", EPOCHS), ("partition.metadata", METADATA)])
def test_a_damaged_file_of_a_partition(name: str, damages: dict[str, Damage], stop: str) -> None:
    copy, written = stopped_log() if stop == "stopped" else killed_log()
    for kind, damage in {**ANY, **damages}.items():
        try:
            repairs = check(copy, written, name, damage, stop)
        except AssertionError as error:
            raise AssertionError(f"{name} {kind}, {stop}") from error
        if name.startswith("leader") and kind not in ("gone", "beyond the end"):
            assert any(name in line for line in repairs), kind


@pytest.mark.parametrize("stop", STOPS)
def test_a_log_opens_without_any_file_but_the_segments(stop: str) -> None:
    copy, written = stopped_log() if stop == "stopped" else killed_log()
    copy.files = {name: data for name, data in copy.files.items() if name.endswith(".log")}
    copy.files["partition.metadata"] = b""
    check(copy, written, "partition.metadata", lambda _: None, stop)
