"""Of a damaged log, Apache Kafka and kbroker recover the same part, except for the differences listed here.

`KBROKER_COMPAT_DAMAGE=all` tests every byte and every bit, otherwise a tenth of them.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from protocol.records.batch import HEADER_SIZE
from tests.compat.crash.kafka_recovery import Case, Opened, open_with_kafka, open_with_kbroker
from tests.unit.support.damaged_log import LogCopy, Written, flip_bit, memory_lab, write

ALL = os.environ.get("KBROKER_COMPAT_DAMAGE") == "all"
INTERVAL = 200
BATCHES = 12
FIRST, MIDDLE, LAST = 0, 8, BATCHES - 1

BASE_OFFSET = range(8 * 8)
MAGIC = range(8 * 16, 8 * 17)


@pytest.fixture
def log() -> tuple[LogCopy, Written]:
    if not (shutil.which("java") and shutil.which("mvn")):
        pytest.skip("not run: Kafka's recovery needs Java 17 or newer, and Maven to fetch it")
    lab = memory_lab(index_interval_bytes=INTERVAL)
    log = lab.open()
    written = write(log, BATCHES)
    copy = LogCopy(lab)
    copy.remove_checkpoint()
    return copy, written


def sample(cases: Iterator[tuple[str, int, bytes]]) -> list[tuple[str, int, bytes]]:
    selected = list(cases)
    return selected if ALL else Random(1).sample(selected, len(selected) // 10)


def damages(written: Written) -> Iterator[tuple[str, int, bytes]]:
    """Yield (description, number of the damaged batch, file content)."""
    data = written.data
    for cut in range(written.ends[-4], len(data) + 1):
        yield f"cut at {cut}", sum(end <= cut for end in written.ends), data[:cut]
    for number in (FIRST, MIDDLE, LAST):
        position, header = written.at[number]
        for bit in range(8 * (HEADER_SIZE if not ALL else header.size)):
            yield f"batch {number} bit {bit}", number, flip_bit(data, 8 * position + bit)


def intended_difference(damage: str, kafka: Opened, ours: Opened, written: Written, number: int) -> str | None:
    """Return why kbroker intentionally keeps less or more than Kafka; None if it should keep the same."""
    _, _, bit = damage.rpartition(" ")
    valid_prefix = ours.error is None and ours.end == written.at[number][1].base_offset
    if "bit" in damage and int(bit) in BASE_OFFSET and valid_prefix:
        return "Kafka cannot start, or keeps the batch at another offset; kbroker cuts before it"
    if "bit" in damage and int(bit) in MAGIC and valid_prefix and kafka.error is None:
        return "Kafka reads any magic from 2 on as 2"
    return None


@pytest.mark.feature("kill -9")
@pytest.mark.client("kafka_tools")
def test_recovery_keeps_what_kafka_keeps(log: tuple[LogCopy, Written], tmp_path: Path) -> None:
    copy, written = log
    (name,) = (name for name in copy.files if name.endswith(".log"))
    damaged_logs = sample(damages(written))
    cases = [Case({**copy.files, name: data}) for _, _, data in damaged_logs]
    results = open_with_kafka(cases, tmp_path, INTERVAL)
    differences: dict[str, int] = {}
    for (damage, number, _), case, kafka in zip(damaged_logs, cases, results, strict=True):
        ours = open_with_kbroker(case, copy)
        if kafka != ours:
            reason = intended_difference(damage, kafka, ours, written, number)
            assert reason is not None, (damage, kafka, ours)
            differences[reason] = differences.get(reason, 0) + 1
    assert len(differences) == 2
    assert not ALL or sorted(differences.values()) == [18, 192], differences
