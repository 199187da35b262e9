"""The state of a log while it is loaded from disk."""

from kbroker.common import TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk
from kbroker.storage.log.durability import DirectorySync
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.leader_epoch_file import LeaderEpochFile
from kbroker.storage.log.producer_snapshots import ProducerSnapshots
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.producers.producer_state_manager import ProducerStateManager


class LoadedLog:
    """Recovery fills it in, and a Log starts with it. `repairs`: one line for each repair.

    Everything below `cleaned_to` has been compacted. `high_watermark`: that of the last checkpoint; None if it has
    none, such as for a partition with a single replica.
    """

    __slots__ = (
        "cleaned_to",
        "config",
        "directory",
        "directory_sync",
        "disk",
        "epoch_file",
        "epochs",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "recovery_point",
        "repairs",
        "segments",
        "snapshots",
        "tp",
    )

    def __init__(self, disk: Disk, directory: str, tp: TopicPartition, config: TopicConfig) -> None:
        self.disk = disk
        self.directory = directory
        self.tp = tp
        self.config = config
        self.segments: list[LogSegment] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.cleaned_to = 0
        self.high_watermark: int | None = None
        self.producers = ProducerStateManager()
        self.epochs = LeaderEpochCache()
        self.snapshots = ProducerSnapshots(disk, directory)
        self.epoch_file = LeaderEpochFile(disk, directory)
        self.directory_sync = DirectorySync(disk, directory)
        self.repairs: list[str] = []
