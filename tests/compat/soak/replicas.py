"""Compares the logs of all brokers byte by byte, when they do not run."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def check_replicas(data_dirs: Mapping[int, Path], replicas: Mapping[tuple[str, int], Sequence[int]]) -> int:
    """Check that the replicas of each partition have the same batches. Returns the size of one of each in bytes.

    `data_dirs`: by broker. `replicas`: the brokers that have a partition. No records may have been deleted. Segments
    may begin at different offsets.
    """
    total = 0
    for (topic, partition), brokers in replicas.items():
        name = f"{topic}-{partition}"
        first_dir, *other_dirs = (data_dirs[broker] for broker in brokers)
        first = _log_bytes(first_dir / name)
        total += len(first)
        for data_dir in other_dirs:
            other = _log_bytes(data_dir / name)
            if other != first:
                pairs = enumerate(zip(first, other, strict=False))
                equal = next((i for i, (a, b) in pairs if a != b), min(len(first), len(other)))
                raise AssertionError(
                    f"{name}: {data_dir} has {len(other)} bytes, {first_dir} has {len(first)}; "
                    f"the first {equal} are the same"
                )
    return total


def _log_bytes(directory: Path) -> bytes:
    assert directory.is_dir(), f"{directory} does not exist"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
