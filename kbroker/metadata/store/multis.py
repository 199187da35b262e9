"""Splits operations into multis that the coordination service accepts."""

from collections.abc import Iterable, Iterator

from kbroker.metadata.store.coordination import Create, Op, Set

# The size at which another multi is begun, well below ZooKeeper's limit of about 1 MiB.
MULTI_BYTES = 400_000


def op_bytes(op: Op) -> int:
    return len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0)


def batches(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """Split operations into multis of about MULTI_BYTES."""
    batch: list[Op] = []
    size = 0
    for op in ops:
        batch.append(op)
        size += op_bytes(op)
        if size > MULTI_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
