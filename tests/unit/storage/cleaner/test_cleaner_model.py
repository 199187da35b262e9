"""Compaction compared with a model, over many rounds of appends, restarts and crashes."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kbroker.storage.cleaner.cleaner import ENTRY_BYTES
from tests.sampling import third_of
from tests.unit.storage.cleaner.log_model import HOUR, Model, write_some
from tests.unit.support.compaction import COMPACT, DAY, compact, records
from tests.unit.support.crashing_disk import Crash, CrashingDisk
from tests.unit.support.log_lab import NOW, Lab


@pytest.mark.parametrize("seed", third_of(range(20)))
def test_many_rounds_agree_with_the_model(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lab = Lab(tmp_path, **COMPACT, index_interval_bytes=random.choice((100, 4096)))
    log = lab.open()
    model = Model()
    now_ms = NOW
    for _ in range(12):
        write_some(log, model, random, now_ms, random.randrange(1, 60))
        model.check(log)
        now_ms += random.choice((0, HOUR, DAY // 2, DAY, 2 * DAY))
        if random.random() < 0.7 and compact(log, now_ms, map_bytes=random.choice((8, 40, 10_000)) * ENTRY_BYTES):
            model.check(log)
            model.check_compacted(log, now_ms)
            assert log.snapshots.offsets == {int(path.name[:20]) for path in lab.path.glob("*.snapshot")}
        end, cleaned_to = log.log_end_offset, log.cleaned_to
        draw = random.random()
        if draw < 0.3:
            clean = draw < 0.15
            if clean:
                lab.close(log)
            if random.random() < 0.5:
                # Lost snapshots are rebuilt from the log, which has the last batch of each producer.
                for path in lab.path.glob("*.snapshot"):
                    path.unlink()
            lab.background.run_delayed()
            log = lab.open(end if clean else 0, clean=clean, cleaned_to=cleaned_to)
            assert log.log_end_offset == end
            active = {
                producer.producer_id: (producer.producer_epoch, producer.last_sequence)
                for producer in log.producers.active()
            }
            assert active == model.producers
            model.check(log)


@pytest.mark.parametrize("group", [1000, 100_000])
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_each_change_of_the_disk(tmp_path: Path, seed: int, group: int) -> None:
    """The cleaner's process or the broker may end at any time, also during a second compaction."""
    stop = 0
    while True:
        disk = CrashingDisk()
        lab = Lab(tmp_path / str(stop), disk, **{**COMPACT, "segment_bytes": 1000})
        log = lab.open()
        random, model = Random(seed), Model()
        write_some(log, model, random, NOW, 8)
        log.roll(NOW)
        assert compact(log)
        model.check_compacted(log, NOW)
        write_some(log, model, random, NOW, 16)
        log.roll(NOW)
        # Some or all segments are merged.
        log.set_config(replace(log.config, segment_bytes=group))
        disk.left = stop
        try:
            compact(log, NOW + 2 * DAY)
        except Crash:
            disk.left = 1 << 60
        else:
            break
        log = lab.open(0)
        model.check(log)
        leftovers = [name for name in lab.files() if name.endswith((".swap", ".cleaned", ".deleted"))]
        assert leftovers == []
        active = {
            producer.producer_id: (producer.producer_epoch, producer.last_sequence)
            for producer in log.producers.active()
        }
        assert active == model.producers
        log.cleaned_to = 0
        log.durability.checkpoint()
        assert compact(log, NOW + 2 * DAY)
        model.check(log)
        keys = [key for offset, (_, key, _) in records(log).items() if offset < log.cleaned_to]
        assert len(keys) == len(set(keys))
        stop += 1
    assert stop > 15
