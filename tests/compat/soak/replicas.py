"""Compares the logs of all brokers byte by byte, when they do not run."""

from collections.abc import Sequence
from pathlib import Path


def check_replicas(data_dirs: Sequence[Path], topics: Sequence[str]) -> int:
    """Check that the replicas of each partition of these topics have the same batches. Returns their size in bytes.

    No records of the topics may have been deleted. Segments may begin at different offsets.
    """
    total = 0
    for topic in topics:
        names = sorted({path.name for data_dir in data_dirs for path in data_dir.glob(f"{topic}-[0-9]*")})
        assert names, f"no logs of {topic}"
        for name in names:
            first, *others = (_log_bytes(data_dir / name) for data_dir in data_dirs)
            total += len(first)
            for data_dir, other in zip(data_dirs[1:], others, strict=True):
                if other != first:
                    equal = next(
                        (i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b),
                        min(len(first), len(other)),
                    )
                    raise AssertionError(
                        f"{name}: {data_dir} has {len(other)} bytes, {data_dirs[0]} has {len(first)}; "
                        f"the first {equal} are the same"
                    )
    return total


def _log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
