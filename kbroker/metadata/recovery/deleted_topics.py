"""The ids of the topics that were deleted last: the proof that a topic was deleted, and its metadata not merely lost.

A broker sees a deletion in the change that has written it. One that was stopped then, or that reads all nodes again,
finds the id here, or keeps the logs. A ring of nodes has the last NODES * IDS_PER_NODE ids, or a few less; the node
above them has the number of all deletions so far. Changes do not name these nodes, which brokers of the version before
do not know.
"""

from collections.abc import Sequence

from kbroker.coordination.interface import Coordination, Create, Node, Op, Set
from kbroker.metadata.store.znodes import ROOT, decode, decoding, encode

DELETED_TOPICS = f"{ROOT}/deleted-topics"
NODES = 64
# A deletion writes a node of up to 5.6 KB again.
IDS_PER_NODE = 160


def _ring_path(number: int) -> str:
    return f"{DELETED_TOPICS}/{number % NODES}"


async def deletion_ops(coordination: Coordination, topic_ids: Sequence[bytes]) -> list[Op]:
    """Return the operations that record deletions, for the multi that deletes the topics. Raises CoordinationError.

    Only the controller writes them. They fail with BadVersion if the nodes were read late.
    """
    (root,) = await coordination.get_many([DELETED_TOPICS])
    first = _count(root)
    last = first + len(topic_ids)
    numbers = range(first // IDS_PER_NODE, (last - 1) // IDS_PER_NODE + 1)
    nodes = await coordination.get_many([_ring_path(number) for number in numbers])
    ops = [_write(DELETED_TOPICS, encode({"count": last}), root)]
    remaining = list(topic_ids)
    for number, node in zip(numbers, nodes, strict=True):
        used = first % IDS_PER_NODE if number == numbers[0] else 0
        # A node that is begun again has the ids of an earlier round.
        ids = _ids(_ring_path(number), node)[:used] if used else []
        room = IDS_PER_NODE - used
        ids += remaining[:room]
        del remaining[:room]
        ops.append(_write(_ring_path(number), encode([topic_id.hex() for topic_id in ids]), node))
    return ops


async def read_deleted_topics(coordination: Coordination) -> frozenset[bytes]:
    """Return the ids in the ring. Raises CoordinationError."""
    (root,) = await coordination.get_many([DELETED_TOPICS])
    if root is None:
        return frozenset()
    paths = [_ring_path(number) for number in range(min(NODES, (_count(root) - 1) // IDS_PER_NODE + 1))]
    nodes = await coordination.get_many(paths)
    return frozenset(id for path, node in zip(paths, nodes, strict=True) for id in _ids(path, node))


def _write(path: str, data: bytes, node: Node | None) -> Op:
    return Create(path, data) if node is None else Set(path, data, node.version)


def _count(root: Node | None) -> int:
    if root is None:
        return 0
    with decoding(DELETED_TOPICS):
        return int(decode(DELETED_TOPICS, root.data)["count"])


def _ids(path: str, node: Node | None) -> list[bytes]:
    if node is None:
        return []
    with decoding(path):
        return [bytes.fromhex(text) for text in decode(path, node.data)]
