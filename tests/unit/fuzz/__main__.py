"""Run the decoders on random inputs (./scripts/fuzz), all or some targets, until the time is over.

A failure is reported immediately, with the command that replays it, and its input is saved. The run continues; its exit
status is then 1.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

from tests.unit.fuzz.check import Target, check, random_input, shrink
from tests.unit.fuzz.damage import damaged
from tests.unit.fuzz.table import targets

# Consecutive inputs of one target of weight 1.
INPUTS_PER_TURN = 200
# Memory is measured for one input in this many.
MEASURED = 16
PROGRESS_S = 10.0


class Run:
    """One run: its seed and targets, the number of inputs by target, and of failures by target and kind."""

    def __init__(self, targets: list[Target], seed: int, directory: Path) -> None:
        self.targets = targets
        self.seed = seed
        self.directory = directory
        self.inputs: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        reported = time.monotonic()
        while time.monotonic() < end:
            for target in self.targets:
                for _ in range(max(1, int(INPUTS_PER_TURN / target.weight))):
                    self.run_input(target, self.inputs[target.name])
                    self.inputs[target.name] += 1
                now = time.monotonic()
                if now > end:
                    break
                if now - reported > PROGRESS_S:
                    reported = now
                    self.print_progress(end - now)

    def print_progress(self, remaining_s: float) -> None:
        print(
            f"{self.inputs.total()} inputs, {len(self.failures)} failures, {remaining_s / 60:.1f} min left",
            file=sys.stderr,
        )

    def run_input(self, target: Target, number: int) -> None:
        case, steps = random_input(target, self.seed, number)
        data = damaged(case, steps)
        failure = check(target, case, data, memory=number % MEASURED == 0)
        if failure is None:
            return
        key = target.name, failure.kind
        self.failures[key] += 1
        if self.failures[key] > 1:
            return
        steps = shrink(target, case, steps, failure.kind)
        data = damaged(case, steps)
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / f"{target.name}-{self.seed}-{number}"
        file.write_bytes(data)
        print(
            f"{target.name}: {failure.kind}\n{failure.detail.rstrip()}\n{len(data)} bytes in {file}: {data[:60].hex()}"
        )
        print(f"replay: ./scripts/fuzz --replay {target.name} {self.seed} {number}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--target", action="append", help="a target, or the beginning of target names; repeatable")
    parser.add_argument("--seed", type=int, help="seed of the run; by default a random one")
    parser.add_argument("--keep", type=Path, default=Path(".cache/fuzz"), help="directory for failing inputs")
    parser.add_argument("--list", action="store_true", help="print the names of the targets")
    parser.add_argument("--replay", nargs=3, metavar=("TARGET", "SEED", "NUMBER"), help="run one input again")
    options = parser.parse_args()
    names = tuple(options.target or [""])
    chosen = [target for name, target in targets().items() if name.startswith(names)]
    if options.list:
        print("\n".join(target.name for target in chosen))
        return 0
    if options.replay:
        name, seed, number = options.replay
        run = Run([targets()[name]], int(seed), options.keep)
        run.run_input(targets()[name], int(number))
        return bool(run.failures)
    if not chosen:
        parser.error(f"no target begins with {' or '.join(names)}; see --list")
    seed = SystemRandom().getrandbits(32) if options.seed is None else options.seed
    print(f"{len(chosen)} targets, {options.minutes:g} minutes, seed {seed}", file=sys.stderr)
    run = Run(chosen, seed, options.keep)
    run.run(60 * options.minutes)
    print(
        f"{run.inputs.total()} inputs of {len(run.inputs)} targets, seed {seed}: {len(run.failures)} kinds of failure"
    )
    for (name, kind), count in sorted(run.failures.items()):
        print(f"  {name}: {kind} ({count} times)")
    return bool(run.failures)


if __name__ == "__main__":
    sys.exit(main())
