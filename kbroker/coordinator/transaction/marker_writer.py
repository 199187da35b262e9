"""Where the end of a transaction goes: a group's offsets are told of it by their coordinator, all else is the log's."""

from collections.abc import Callable

from kbroker.common import TopicPartition
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC, MarkerWriter, TransactionMarker
from protocol.errors import ErrorCode


class TransactionMarkerWriter:
    """The MarkerWriter of a whole broker."""

    def __init__(self, replicas: MarkerWriter, groups: MarkerWriter) -> None:
        self._replicas = replicas
        self._groups = groups

    def write_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        writer = self._groups if tp.topic == GROUP_METADATA_TOPIC else self._replicas
        writer.write_marker(tp, marker, done)
