"""A broker that is repeatedly killed (kill -9) during compaction while producers write.

Four kills, or more (about 15 a minute):

    KBROKER_COMPAT_KILLS=50 pytest tests/compat/compaction/test_kills.py
"""

import os
import random

import pytest

from tests.compat.compaction.changelog_producer import ChangelogProducer
from tests.compat.compaction.compacted_topic import ROLL_KEY, CompactedTopic
from tests.compat.compaction.conftest import PROMPT_CLEANING
from tests.compat.compaction.expected import check_sound, latest
from tests.compat.compaction.killer import CHILD, CLEANED, SWAP, Killer
from tests.compat.compaction.log_files import check_files
from tests.compat.support import need_own_broker, running_broker

KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "4"))
# None: only the cleaner process is killed.
MOMENTS = (CLEANED, CHILD, SWAP, None)
CONFIGS = {"internal.segment.bytes": "300000", "segment.ms": "60000", "min.cleanable.dirty.ratio": "0.3"}
BYTES_PER_SECOND = 2 << 20
# Throttled, so that a compaction takes longer than its detection.
SLOW_CLEANING = {**PROMPT_CLEANING, "log.cleaner.io.max.bytes.per.second": str(8 << 20)}

pytestmark = [pytest.mark.feature("compaction"), pytest.mark.client("kafka_tools")]


def kills_during_compaction(killer: Killer) -> int:
    """Return the number of kills during a compaction."""
    return sum(bool(kill.signs) for kill in killer.kills)


# The limit is for a test that hangs: every wait has its own.
@pytest.mark.timeout(1200 + 60 * KILLS)
def test_kills_during_compaction(jvm, clients, tmp_path, name, report):
    need_own_broker()
    with running_broker(tmp_path, SLOW_CLEANING) as broker:
        topic = CompactedTopic.created(broker.bootstrap, clients, name, 1, CONFIGS)
        killer = Killer(broker, broker.partition_dir(name, 0), random.Random(KILLS))
        producer = ChangelogProducer(broker.bootstrap, name, BYTES_PER_SECOND)
        try:
            producer.start()
            number = 0
            # On a busy machine a kill may come too late for its compaction, so there may be more than KILLS of them.
            while number < KILLS or 2 * kills_during_compaction(killer) < KILLS:
                assert number < 5 * KILLS, "kills have to hit compactions"
                moment = MOMENTS[number % len(MOMENTS)]
                if moment is None:
                    killer.kill_cleaner()
                else:
                    killer.kill(moment)
                    broker.start()
                    killer.check_no_orphans()
                number += 1
                report(f"kill {number}: {killer.kills[-1]}")
                with producer.paused() as acknowledged:
                    now = topic.read()
                    check_sound(acknowledged, now)
                    assert {record.offset for record in now} <= {record.offset for record in acknowledged}
                    assert topic.ends() == [len(acknowledged)]
            producer.stop()
        finally:
            producer.abandon()
        acknowledged = producer.acknowledged()
        assert [record.offset for record in acknowledged] == list(range(len(acknowledged))), (
            "every offset was acknowledged"
        )
        topic.alter({"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"})
        now = topic.read_compacted(acknowledged)
        assert [record for record in now if record.key != ROLL_KEY] == latest(acknowledged)
        report(f"{kills_during_compaction(killer)} of {number} kills hit a compaction; {len(acknowledged)} records")
        now = topic.stop_compaction(broker)
        assert [record for record in now if record.key != ROLL_KEY] == latest(acknowledged)
        broker.stop()
        check_files(jvm, broker.partition_dir(name, 0), now)
