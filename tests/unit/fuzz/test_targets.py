"""Every target for a short time with the same inputs; `./scripts/fuzz` runs longer, with random ones.

KBROKER_FUZZ_SEED sets another seed, KBROKER_FUZZ_TIMES multiplies the number of inputs.
"""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from tests.sampling import THOROUGH
from tests.unit.fuzz.check import Target, check, random_input
from tests.unit.fuzz.damage import Step, damaged
from tests.unit.fuzz.table import targets

SEED = int(os.environ.get("KBROKER_FUZZ_SEED", "1"))
TIMES = float(os.environ.get("KBROKER_FUZZ_TIMES", "1"))
# For a target of weight 1.
INPUTS = 600 if THOROUGH else 200
MEASURED = 16

BY_NAME = [pytest.param(target, id=name) for name, target in targets().items()]
STEPS = st.lists(st.builds(Step, *[st.integers(0, (1 << 32) - 1)] * 4), max_size=6)


@pytest.mark.parametrize("target", BY_NAME)
def test_damage_is_rejected_or_harmless(target: Target) -> None:
    for number in range(max(10, int(TIMES * INPUTS / target.weight))):
        case, steps = random_input(target, SEED, number)
        failure = check(target, case, damaged(case, steps), memory=number % MEASURED == 0)
        assert failure is None, f"{failure}\nreplay: ./scripts/fuzz --replay {target.name} {SEED} {number}"


@pytest.mark.parametrize("target", BY_NAME)
def test_undamaged_input_is_accepted(target: Target) -> None:
    for number in range(3 if target.weight > 10 else 10):
        case = target.make(Random(f"{target.name}/{SEED}/{number}"))
        if case.good:
            case.run(case.data)


# Hypothesis generates damage in other ways and shrinks it; it is slower per input.
_SMALL = ("batch", "codec", "coordination", "file", "group", "header", "wire")


@pytest.mark.parametrize("target", [t for t in BY_NAME if str(t.id).split(".")[0] in _SMALL])
def test_inputs_from_hypothesis_are_accepted_or_rejected(target: Target) -> None:
    @hypothesis_seed(SEED)
    @settings(max_examples=int(12 * TIMES), database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 1 << 16), STEPS)
    def run(number: int, steps: list[Step]) -> None:
        case = target.make(Random(number))
        failure = check(target, case, damaged(case, steps))
        assert failure is None, failure

    run()
