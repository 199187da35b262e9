"""The parts of a log that reads use. Reads change only its position cache."""

from collections.abc import Sequence
from typing import Protocol

from kbroker.common import KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.storage.log.reading.position_cache import PositionCache
from kbroker.storage.log.segment import LogSegment


class IndexedLog(Protocol):
    """The parts of a segment that searches use."""

    @property
    def tp(self) -> TopicPartition: ...
    @property
    def config(self) -> TopicConfig: ...
    @property
    def log_end_offset(self) -> int: ...


class ReadableLog(IndexedLog, Protocol):
    """A read in a thread loads each attribute once, since the event loop may append: segment.py says in which order."""

    @property
    def segments(self) -> Sequence[LogSegment]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def positions(self) -> PositionCache: ...
    def read_failed(self, error: OSError) -> KafkaError: ...
