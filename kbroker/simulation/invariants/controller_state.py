"""The partitions and brokers as the controller has written them, read from the coordination service's tree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.coordination.interface import NoNode
from kbroker.metadata.reassignments import stored_plan
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import decode_change_log

if TYPE_CHECKING:
    from kbroker.coordination.data_tree import DataTree
    from kbroker.metadata.image import KnownBroker, PartitionRegistration
    from kbroker.metadata.reassignments.stored_plan import StoredPlan
    from kbroker.simulation.checker.history import TopicPartition

T = TypeVar("T")

_BROKER_CONFIGS = znodes.config_path(ConfigResource(ConfigResourceType.BROKER, "1")).rpartition("/")[0]


class StoredPartition(NamedTuple):
    topic_id: bytes
    registration: PartitionRegistration


class ControllerState:
    """Decodes nodes once, as long as their data is the same object."""

    def __init__(self, tree: DataTree) -> None:
        self._tree = tree
        self._decoded: dict[str, tuple[bytes, object]] = {}
        # The nodes that the known partitions were read from, with their data.
        self._sources: list[tuple[str, bytes]] = []
        self._partitions: dict[TopicPartition, StoredPartition] = {}
        self._plan_data = b""
        self._plan: StoredPlan | None = None

    def use(self, tree: DataTree) -> None:
        """Read the nodes of another tree from now on."""
        self._tree = tree

    def partitions(self) -> dict[TopicPartition, StoredPartition]:
        """Return all partitions of the topics that exist. Do not change the result."""
        topics = [(name, self._tree.get(znodes.topic_path(name)).data) for name in self._children(znodes.TOPICS)]
        numbers = self._children(znodes.PARTITIONS)
        sources = topics + [(number, self._tree.get(znodes.chunk_path(int(number))).data) for number in numbers]
        if sources != self._sources:
            names = {znodes.decode_topic(name, data).topic_id: name for name, data in topics}
            self._sources = sources
            self._partitions = {
                (names[topic_id], index): StoredPartition(topic_id, registration)
                for number in numbers
                for topic_id, partitions in self._chunk(int(number)).items()
                if topic_id in names
                for index, registration in partitions.items()
            }
        return self._partitions

    @property
    def last_change(self) -> int:
        """The number of the last metadata change."""
        return decode_change_log(self._tree.get(znodes.CHANGES).data).number

    def brokers(self) -> dict[int, KnownBroker]:
        """Return the registrations that the controller has written, by broker id."""
        ids = map(int, self._children(znodes.REGISTRATIONS))
        return {id: self._decode(znodes.registration_path(id), id, znodes.decode_registration) for id in ids}

    def cordoned_brokers(self) -> frozenset[int]:
        """Return the brokers that get no replicas of new partitions."""
        nodes = {name: f"{_BROKER_CONFIGS}/{name}" for name in self._children(_BROKER_CONFIGS)}
        return frozenset(
            int(name)
            for name, path in nodes.items()
            if name.isdecimal() and self._decode(path, int(name), lambda _, data: data.find(b"cordoned.log.dirs") >= 0)
        )

    def reassignment_plan(self) -> StoredPlan | None:
        """Return the plan of reassignments that runs, or the last one: the same object as long as its node is."""
        try:
            data = self._tree.get(znodes.REASSIGNMENT_PLAN).data
        except NoNode:
            return None
        if self._plan_data is not data:
            self._plan_data, self._plan = data, self._decode_plan(data)
        return self._plan

    def _decode_plan(self, data: bytes) -> StoredPlan | None:
        header = stored_plan.decode_header(data)
        if header is None:
            return None
        moves = (stored_plan.decode_moves(path, self._tree.get(path).data) for path in header.move_paths())
        return header.plan._replace(moves=tuple(chain.from_iterable(moves)))

    def _chunk(self, number: int) -> znodes.Chunk:
        return self._decode(znodes.chunk_path(number), number, znodes.decode_chunk)

    def _decode(self, path: str, number: int, decode: Callable[[int, bytes], T]) -> T:
        data = self._tree.get(path).data
        known = self._decoded.get(path)
        if known is None or known[0] is not data:
            known = self._decoded[path] = data, decode(number, data)
        return known[1]  # type: ignore[return-value]

    def _children(self, path: str) -> list[str]:
        try:
            return self._tree.children(path)
        except NoNode:
            return []
