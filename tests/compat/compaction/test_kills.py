"""A broker that is killed by kill -9 while it compacts, again and again, under producers that go on.

Five kills, and many more on demand (a minute for about 15):

    KBROKER_COMPAT_KILLS=50 pytest tests/compat/compaction/test_kills.py
"""

import os
import random

import pytest

from tests.compat.compaction.changelog import Changelog
from tests.compat.compaction.conftest import PROMPT
from tests.compat.compaction.expected import check_sound, latest
from tests.compat.compaction.files import check_files
from tests.compat.compaction.kills import CHILD, CLEANED, SWAP, Killer
from tests.compat.compaction.topic import NUDGE, CompactedTopic
from tests.compat.support import need_own_broker, running_broker

KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "5"))
# Each fifth time the cleaner's process is killed alone.
MOMENTS = (CLEANED, CHILD, SWAP, CHILD, None)
CONFIGS = {"internal.segment.bytes": "300000", "segment.ms": "60000", "min.cleanable.dirty.ratio": "0.3"}
BYTES_PER_SECOND = 4 << 20
# So that a compaction takes longer than it takes to see that it is under way.
UNHURRIED = {**PROMPT, "log.cleaner.io.max.bytes.per.second": str(16 << 20)}

pytestmark = [pytest.mark.feature("compaction"), pytest.mark.client("kafka_tools")]


def hits(killer: Killer) -> int:
    """The number of kills during a compaction."""
    return sum(bool(kill.found) for kill in killer.kills)


# The limit is for a test that hangs: every wait has its own.
@pytest.mark.timeout(1200 + 60 * KILLS)
def test_killed_while_it_compacts(jvm, clients, tmp_path, name, report):
    need_own_broker()
    with running_broker(tmp_path, UNHURRIED) as broker:
        topic = CompactedTopic.created(broker.bootstrap, clients, name, 1, CONFIGS)
        killer = Killer(broker, broker.partition_dir(name, 0), random.Random(KILLS))
        changelog = Changelog(broker.bootstrap, name, BYTES_PER_SECOND)
        try:
            changelog.start()
            number = 0
            # On a busy machine a kill may come too late for its compaction, so there may be more than KILLS of them.
            while number < KILLS or 2 * hits(killer) < KILLS:
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
                with changelog.paused() as written:
                    now = topic.read()
                    check_sound(written, now)
                    assert {record.offset for record in now} <= {record.offset for record in written}
                    assert topic.ends() == [len(written)]
            changelog.stop()
        finally:
            changelog.abandon()
        written = changelog.acknowledged()
        assert [record.offset for record in written] == list(range(len(written))), "each offset was acknowledged once"
        topic.alter({"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"})
        now = topic.read_compacted(written)
        assert [record for record in now if record.key != NUDGE] == latest(written)
        report(f"{hits(killer)} of {number} kills hit a compaction, of {len(written)} records in all")
        now = topic.rest(broker)
        assert [record for record in now if record.key != NUDGE] == latest(written)
        broker.stop()
        check_files(jvm, broker.partition_dir(name, 0), now)
