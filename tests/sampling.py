"""What a normal run leaves out, so that all tests take at most 15 minutes on a machine of two cores.

    KBROKER_TEST_THOROUGH=1     run everything
    KBROKER_TEST_THIRD=0        or 1, 2: the third of each sampled set that runs; 0 if it is not set

Only cases that explore are sampled, such as the seeds of a random test. All three thirds together are everything.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

THOROUGH = os.environ.get("KBROKER_TEST_THOROUGH", "") not in ("", "0")
THIRD = int(os.environ.get("KBROKER_TEST_THIRD", "0")) % 3


def third_of(cases: Sequence[T]) -> Sequence[T]:
    """Return every third case, of one or two cases one; all if the run is thorough."""
    return cases if THOROUGH or not cases else cases[THIRD % min(3, len(cases)) :: 3]
