"""Every target for a short time, the same inputs each time; `./scripts/fuzz` runs for long with others.

KBROKER_FUZZ_SEED is another seed, KBROKER_FUZZ_TIMES so many times as many inputs.
"""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from tests.unit.fuzz.check import Target, chance, check
from tests.unit.fuzz.damage import Step, damaged
from tests.unit.fuzz.table import targets

SEED = int(os.environ.get("KBROKER_FUZZ_SEED", "1"))
TIMES = float(os.environ.get("KBROKER_FUZZ_TIMES", "1"))
# Of a target whose inputs are small ones.
INPUTS = 600
MEASURED = 16

BY_NAME = [pytest.param(target, id=name) for name, target in targets().items()]
STEPS = st.lists(st.builds(Step, *[st.integers(0, (1 << 32) - 1)] * 4), max_size=6)


@pytest.mark.parametrize("target", BY_NAME)
def test_damage_is_refused_or_harmless(target: Target) -> None:
    for number in range(max(10, int(TIMES * INPUTS / target.weight))):
        case, steps = chance(target, SEED, number)
        failure = check(target, case, damaged(case, steps), memory=number % MEASURED == 0)
        assert failure is None, f"{failure}\nagain: ./scripts/fuzz --replay {target.name} {SEED} {number}"


@pytest.mark.parametrize("target", BY_NAME)
def test_what_is_not_damaged_is_taken(target: Target) -> None:
    for number in range(3 if target.weight > 10 else 10):
        case = target.make(Random(f"{target.name}/{SEED}/{number}"))
        if case.good:
            case.run(case.data)


# Hypothesis looks for damage in ways of its own and cuts down what it finds; it takes longer for each input.
_SMALL = ("batch", "codec", "coordination", "file", "group", "header", "wire")


@pytest.mark.parametrize("target", [t for t in BY_NAME if str(t.id).split(".")[0] in _SMALL])
def test_hypothesis_finds_nothing(target: Target) -> None:
    @hypothesis_seed(SEED)
    @settings(max_examples=int(20 * TIMES), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 1 << 16), STEPS)
    def look(number: int, steps: list[Step]) -> None:
        case = target.make(Random(number))
        failure = check(target, case, damaged(case, steps))
        assert failure is None, failure

    look()
