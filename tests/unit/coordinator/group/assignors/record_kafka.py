"""Record what Kafka's own assignors and topic hashes return.

    .venv/bin/python -m tests.unit.coordinator.group.assignors.record_kafka

It replaces kafka-assignments.txt and kafka-hashes.txt: a line of input, and the line that KafkaAssignors.java returns.
Each step of a group begins with the targets that Kafka has returned in the one before.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.compat.java_programs import classpath_of, java_command
from tests.unit.coordinator.group.assignors.groups import new_group, steps, targets_from_line, to_line

HERE = Path(__file__).parent
GROUPS = 12
STEPS = 6


class KafkaAssignors:
    """The Java program: returns a line for each line."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        self._process.communicate()


def kafka_assignors() -> KafkaAssignors:
    return KafkaAssignors(java_command("KafkaAssignors", classpath_of(HERE / "KafkaAssignors.java")))


def assignments(kafka: KafkaAssignors) -> Iterator[str]:
    for assignor in ("range", "uniform"):
        for is_homogeneous in (True, False):
            for seed in range(GROUPS):
                random = Random(seed)
                group = new_group(random, assignor, is_homogeneous)
                for _ in steps(random, group, is_homogeneous, STEPS):
                    line = to_line(group)
                    result = kafka(line)
                    for name, target in targets_from_line(result).items():
                        group.members[name] = group.members[name]._replace(target=target)
                    yield from (line, result)


def hashes(kafka: KafkaAssignors) -> Iterator[str]:
    """Topics with 1 to 60 partitions, so that the inputs of the hash have lengths of all ranges."""
    random = Random(1)
    for partitions in (1, 2, 5, 12, 20, 60):
        for racks in ([], ["a", "zone-b"], ["a", "b", "a"]):
            topic = ",".join(".".join(random.sample(racks, len(racks))) for _ in range(partitions))
            line = "|".join(["hash", f"t;{topic}", *(f"other-{i};," for i in range(random.randint(0, 40)))])
            yield from (line, kafka(line))


def main() -> None:
    kafka = KafkaAssignors(sys.argv[1:]) if len(sys.argv) > 1 else kafka_assignors()
    for name, lines in (("assignments", assignments(kafka)), ("hashes", hashes(kafka))):
        (HERE / f"kafka-{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    kafka.close()


if __name__ == "__main__":
    main()
