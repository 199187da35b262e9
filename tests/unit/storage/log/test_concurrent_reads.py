"""Reads in threads while the event loop appends, rolls and deletes."""

import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from kbroker.common import KafkaError
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.support.log_lab import NOW, Lab, append, batch

BATCHES = 1500


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Reader(Thread):
    """Reads the log as a consumer does, and collects errors."""

    def __init__(self, log: Log, committed: list[int], done: Event) -> None:
        super().__init__(daemon=True)
        self.log, self.committed, self.done = log, committed, done
        self.offset = 0
        self.skipped = 0
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.errors:
            finished = self.done.is_set()
            limit = self.committed[0]
            if self.offset >= limit:
                if finished:
                    return
                continue
            try:
                data = read_blocking(self.log, self.offset, 2000, limit)
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.errors.append(str(error))
                self.offset = self.log.log_start_offset
                self.skipped += 1
                continue
            self.check(bytes(data), limit)

    def check(self, data: bytes, limit: int) -> None:
        if not data:
            self.errors.append(f"nothing at {self.offset} of {limit}")
        for _, header in iter_headers(data):
            if not header.base_offset <= self.offset <= header.last_offset < limit:
                self.errors.append(f"{header.base_offset} to {header.last_offset} at {self.offset} of {limit}")
            self.offset = header.next_offset


@pytest.mark.parametrize("retained", [-1, 20_000])
def test_readers_see_every_batch_once_in_order(tmp_path: Path, retained: int) -> None:
    lab = Lab(tmp_path, segment_bytes=8000, index_interval_bytes=500, retention_bytes=retained, retention_ms=-1)
    log = lab.open()
    committed, done = [0], Event()
    readers = [Reader(log, committed, done) for _ in range(2)]
    for reader in readers:
        reader.start()
    data = [batch(1 + n % 3, 20 + n % 90) for n in range(12)]
    for n in range(BATCHES):
        append(log, data[n % 12])
        committed[0] = log.log_end_offset
        if n % 100 == 0:
            log.enforce_retention(NOW, log.log_end_offset)
            log.close_segment_files(idle_only=True)
            lab.background.run_delayed()
    done.set()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
        assert reader.errors == []
        assert reader.offset == log.log_end_offset
        assert retained > 0 or reader.skipped == 0
