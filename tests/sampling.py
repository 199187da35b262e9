"""What a normal run leaves out, so that all tests take at most 15 minutes on a machine of two cores.

    KBROKER_TEST_THOROUGH=1     run everything
    KBROKER_TEST_THIRD=0        or 1, 2: the third of each sampled set that runs

Only cases that explore are sampled, such as the seeds of a random test, and long explorations, such as kills under
load. All three thirds together are everything. A whole run of ./scripts/test chooses the third by the commit: commits
take turns, and all runs of a commit have the same tests. Otherwise it is the first third, and all long explorations:
a path that is named is run.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

THOROUGH = os.environ.get("KBROKER_TEST_THOROUGH", "") not in ("", "0")
CHOSEN = os.environ.get("KBROKER_TEST_THIRD", "")
THIRD = int(CHOSEN or "0") % 3


def third_of(cases: Sequence[T]) -> Sequence[T]:
    """Return every third case, of one or two cases one; all if the run is thorough."""
    return cases if THOROUGH or not cases else cases[THIRD % min(3, len(cases)) :: 3]


def is_left_out(third: int) -> bool:
    """Return whether this is a run of another third."""
    return CHOSEN != "" and third != THIRD and not THOROUGH


def runs_in_third(third: int) -> pytest.MarkDecorator:
    """Skip a long exploration in runs of the other thirds. Each third has explorations of about the same duration."""
    return pytest.mark.skipif(is_left_out(third), reason=f"not run: a part of KBROKER_TEST_THIRD={third}")
