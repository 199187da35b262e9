"""Opens the same damaged log directories with Apache Kafka's recovery (KafkaRecovery.java) and with kbroker's."""

import json
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.storage.log.log_reads import read_blocking
from protocol.records.batch import parse_header
from tests.compat.java_programs import classpath_of, java_command
from tests.unit.support.damaged_log import LogCopy
from tests.unit.support.log_lab import NOW, forget_positions

SOURCE = Path(__file__).with_name("KafkaRecovery.java")
# As in KafkaRecovery.java.
FETCH_BYTES = 1 << 20
MAX_READS = 100


class Case(NamedTuple):
    """The files of a log directory, its recovery point, and whether the broker was stopped cleanly."""

    files: Mapping[str, bytes]
    recovery_point: int = 0
    clean: bool = False


class Opened(NamedTuple):
    """The log as a broker opened it; `error`: it could not. `reads`: (base offset, size, CRC-32) or an error for a
    fetch at each offset."""

    error: str | None
    start: int = 0
    end: int = 0
    producers: Sequence[Sequence[int]] = ()
    epochs: Sequence[Sequence[int]] = ()
    reads: Sequence[Any] = ()


def open_with_kafka(cases: Sequence[Case], directory: Path, index_interval: int) -> list[Opened]:
    """Open every case in one JVM; the log directories are created under `directory`."""
    lines = []
    for number, case in enumerate(cases):
        path = directory / str(number) / "t-0"
        path.mkdir(parents=True)
        for name, data in case.files.items():
            (path / name).write_bytes(data)
        clean = str(case.clean).lower()
        lines.append(f"{path}\t{case.recovery_point}\t0\t{clean}\t\t{index_interval}\t{NOW}\n")
    command = java_command("KafkaRecovery", classpath_of(SOURCE), heap="512m")
    process = subprocess.run(command, input="".join(lines), capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(results) == len(cases), process.stderr[-2000:]
    return [
        Opened(result["error"])
        if "error" in result
        else Opened(None, result["start"], result["end"], result["producers"], result["epochs"], result["reads"])
        for result in results
    ]


def open_with_kbroker(case: Case, copy: LogCopy) -> Opened:
    copy.files = dict(case.files)
    log = copy.make().open(case.recovery_point, case.clean)
    reads: list[Any] = []
    for offset in range(log.log_start_offset, min(log.log_end_offset, log.log_start_offset + MAX_READS)):
        forget_positions(log)
        try:
            data = bytes(read_blocking(log, offset, FETCH_BYTES, log.log_end_offset))
        except KafkaError as error:
            reads.append(error.code.name)
        else:
            reads.append([parse_header(data).base_offset, len(data), zlib.crc32(data)])
    producers = [[entry.producer_id, entry.last_sequence] for entry in sorted(log.producers.active())]
    epochs = [list(entry) for entry in log.epochs.entries]
    return Opened(None, log.log_start_offset, log.log_end_offset, producers, epochs, reads)
