"""The long run: ./scripts/fuzz. Random inputs for every target, or for some, until the time is over.

A failure is told at once, with what replays it, and its input is kept; the run goes on and ends with status 1.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

from tests.unit.fuzz.check import Target, chance, check, smallest
from tests.unit.fuzz.damage import damaged
from tests.unit.fuzz.table import targets

# Inputs of one target in a row, if they are small ones.
TOGETHER = 200
# One in so many is measured for memory too.
MEASURED = 16
PROGRESS_S = 10.0


class Run:
    """One run: a seed, the targets, what was tried and what was found."""

    def __init__(self, chosen: list[Target], seed: int, keep: Path) -> None:
        self.chosen = chosen
        self.seed = seed
        self.keep = keep
        self.tried: Counter[str] = Counter()
        self.found: Counter[tuple[str, str]] = Counter()

    def go(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        told = time.monotonic()
        while time.monotonic() < end:
            for target in self.chosen:
                for _ in range(max(1, int(TOGETHER / target.weight))):
                    self.one(target, self.tried[target.name])
                    self.tried[target.name] += 1
                now = time.monotonic()
                if now > end:
                    break
                if now - told > PROGRESS_S:
                    told = now
                    self.progress(end - now)

    def progress(self, left: float) -> None:
        print(f"{self.tried.total()} inputs, {len(self.found)} failures, {left / 60:.1f} min left", file=sys.stderr)

    def one(self, target: Target, number: int) -> None:
        case, steps = chance(target, self.seed, number)
        data = damaged(case, steps)
        failure = check(target, case, data, memory=number % MEASURED == 0)
        if failure is None:
            return
        key = target.name, failure.kind
        self.found[key] += 1
        if self.found[key] > 1:
            return
        steps = smallest(target, case, steps, failure.kind)
        data = damaged(case, steps)
        self.keep.mkdir(parents=True, exist_ok=True)
        file = self.keep / f"{target.name}-{self.seed}-{number}"
        file.write_bytes(data)
        print(
            f"{target.name}: {failure.kind}\n{failure.detail.rstrip()}\n{len(data)} bytes in {file}: {data[:60].hex()}"
        )
        print(f"again: ./scripts/fuzz --replay {target.name} {self.seed} {number}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--target", action="append", help="a target or the beginning of some names; may be repeated")
    parser.add_argument("--seed", type=int, help="of the run; another one each time by default")
    parser.add_argument("--keep", type=Path, default=Path(".cache/fuzz"), help="where inputs that fail are put")
    parser.add_argument("--list", action="store_true", help="the targets' names")
    parser.add_argument("--replay", nargs=3, metavar=("TARGET", "SEED", "NUMBER"), help="one input again")
    given = parser.parse_args()
    names = tuple(given.target or [""])
    chosen = [target for name, target in targets().items() if name.startswith(names)]
    if given.list:
        print("\n".join(target.name for target in chosen))
        return 0
    if given.replay:
        name, seed, number = given.replay
        run = Run([targets()[name]], int(seed), given.keep)
        # 0 of the numbers that are measured, so that memory is.
        run.one(targets()[name], int(number))
        return bool(run.found)
    if not chosen:
        parser.error(f"no target begins with {' or '.join(names)}; --list tells them")
    seed = SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"{len(chosen)} targets, {given.minutes:g} minutes, seed {seed}", file=sys.stderr)
    run = Run(chosen, seed, given.keep)
    run.go(60 * given.minutes)
    print(f"{run.tried.total()} inputs of {len(run.tried)} targets, seed {seed}: {len(run.found)} kinds of failure")
    for (name, kind), count in sorted(run.found.items()):
        print(f"  {name}: {kind} ({count} times)")
    return bool(run.found)


if __name__ == "__main__":
    sys.exit(main())
