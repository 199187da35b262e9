"""Whether the metadata lack what a broker has seen: decisions by the change numbers and by who wrote them."""

import pytest

from kbroker.metadata.image import NOTHING_SEEN, SeenMetadata
from kbroker.metadata.recovery.log_recovery import diverges, needs_recovery
from kbroker.metadata.store.change_log import ChangeLog, Writer, decode_change_log, encode_change_log

A, B, C = Writer(1, "a", 0, 1), Writer(2, "b", 50, 51), Writer(3, "c", 80, 81)
# The copy ends with change 60, and a controller that does not know of the lost ones has written 61 to 90.
FORKED = ChangeLog(90, None, (A, B, Writer(3, "d", 60, 61)))
# The copy ends with change 60. A recovery has begun with change 1,000.
RECOVERED = ChangeLog(1_005, None, (A, B, Writer(3, "d", 60, 1_000)))


def seen(number: int, writer: Writer) -> SeenMetadata:
    return SeenMetadata(number, writer.epoch, writer.name)


@pytest.mark.parametrize(
    ("was_seen", "log", "expected"),
    [
        (NOTHING_SEEN, ChangeLog(7, None, (A,)), False),
        (seen(7, A), ChangeLog(7, None, (A,)), False),
        # Lost changes of a controller that the copy knows, or does not know.
        (seen(8, A), ChangeLog(7, None, (A,)), True),
        (seen(85, C), ChangeLog(60, None, (A, B)), True),
        # The numbers are in use again, for other changes.
        (seen(60, B), FORKED, False),
        (seen(61, B), FORKED, True),
        (seen(85, C), FORKED, True),
        (seen(90, FORKED.writers[-1]), FORKED, False),
        # Nothing is known of the writers.
        (SeenMetadata(7), ChangeLog(9), False),
        (seen(7, C), ChangeLog(9), False),
        (seen(7, C), ChangeLog(90, None, (Writer(5, "e", 20, 21),)), False),
        (SeenMetadata(10), ChangeLog(9), True),
    ],
)  # fmt: skip
def test_changes_that_the_metadata_lack(was_seen: SeenMetadata, log: ChangeLog, expected: bool) -> None:
    assert diverges(was_seen, log) is expected
    assert needs_recovery(was_seen, log) is expected


@pytest.mark.parametrize(
    ("was_seen", "is_other_history", "is_new"),
    [
        (seen(60, B), False, False),
        # A broker that was away during the recovery.
        (seen(85, C), True, False),
        (seen(1_003, RECOVERED.writers[-1]), False, False),
        # A second restore, to a copy from before or after the first recovery.
        (seen(2_000, Writer(4, "e", 1_010, 1_011)), True, True),
    ],
)
def test_a_recovery_accounts_for_all_changes_before_it(
    was_seen: SeenMetadata, is_other_history: bool, is_new: bool
) -> None:
    assert diverges(was_seen, RECOVERED) is is_other_history
    assert needs_recovery(was_seen, RECOVERED) is is_new


def test_the_change_log_keeps_its_writers() -> None:
    assert decode_change_log(encode_change_log(FORKED)) == FORKED
    # Versions before this one do not write them.
    assert decode_change_log(b'{"number":7,"recent":[]}') == ChangeLog(7)
