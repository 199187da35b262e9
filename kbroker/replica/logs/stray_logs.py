"""Logs that the metadata image does not assign to this broker: their fate, and those that are set aside.

A log is deleted only if its topic, its partition or this replica is known to have been removed. That the metadata lacks
it proves nothing: the metadata may be lost, restored from an older copy, or that of another cluster. Such a log is set
aside: as in Kafka, its directory is renamed to `.stray`. It is opened again, with its records and offsets, when the
partition of its topic id is assigned to this broker. Until then its own file has the offsets that the checkpoint files
of the data directory had of it.
"""

import json
from collections.abc import Callable, Collection, Container
from enum import Enum, auto
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.recovery.log_recovery import MAX_UNSEEN_EPOCHS
from kbroker.runtime.disk import Disk
from kbroker.runtime.event_log import EventLogger
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.inspect.batches import Damage, iter_batches
from kbroker.storage.metadata_files import read_topic_id


class LogFate(Enum):
    """KEEP: the log is assigned, or may be with the next change, because the image was read during one."""

    KEEP = auto()
    DELETE = auto()
    SET_ASIDE = auto()


def fate_of_log(
    tp: TopicPartition,
    topic_id: bytes | None,
    latest_epoch: int | None,
    node_id: int,
    image: MetadataImage,
    deleted: Container[bytes],
) -> LogFate:
    """Decide about a log, while the broker runs and when it starts. `deleted`: the ids of the topics that were deleted
    last.

    `topic_id` and `latest_epoch`, the latest leader epoch of the log's records, are None if the files with them are
    lost. A state of the partition that lacks this replica is newer than the log only if its leader epoch is higher: the
    change that removes a replica or a partition begins one.
    """
    if topic_id is None:
        # Nothing proves that the log is that of the topic with this name.
        topic = image.topics.get(tp.topic)
        may_return = topic is not None and not topic.is_removed(tp.partition) and tp.partition >= len(topic.partitions)
        return LogFate.KEEP if may_return else LogFate.SET_ASIDE
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        return LogFate.DELETE if topic_id in deleted else LogFate.SET_ASIDE
    if tp.partition < len(topic.partitions):
        registration = topic.partitions[tp.partition]
        if node_id in registration.replicas:
            return LogFate.KEEP
        leader_epoch = registration.leader_epoch
    elif topic.is_removed(tp.partition):
        # New partitions of the topic begin in this epoch, so those that were removed had lower ones.
        leader_epoch = topic.first_leader_epoch
    else:
        return LogFate.KEEP
    if latest_epoch is None or leader_epoch >= latest_epoch + MAX_UNSEEN_EPOCHS:
        # A recovery has skipped epochs, because the metadata were older than the logs: the replica may have been added
        # by a change that is lost.
        return LogFate.SET_ASIDE
    return LogFate.DELETE if latest_epoch < leader_epoch else LogFate.SET_ASIDE


event_log = EventLogger("kbroker.logs")

# Decides about a log that was found on disk: its partition, its topic id and its latest leader epoch, None if unknown.
FateOf = Callable[[TopicPartition, bytes | None, int | None], LogFate]


class LogOffsets(NamedTuple):
    """The offsets of one log in the checkpoint files. `high_watermark` is None if it has none."""

    recovery_point: int = 0
    log_start_offset: int = 0
    cleaned_to: int = 0
    high_watermark: int | None = None


class LogPosition(NamedTuple):
    """How far a log goes. The latest leader epoch is -1 if there is none."""

    leader_epoch: int = -1
    log_start_offset: int = 0
    log_end_offset: int = 0


class StrayLogs:
    """The stray logs of one data directory. Used in threads. `unique` returns a name suffix that is not used yet."""

    def __init__(self, disk: Disk, path: str, unique: Callable[[], str]) -> None:
        self._disk = disk
        self._path = path
        self._unique = unique
        # The directories that were renamed, by topic id and partition index.
        self._directories: dict[tuple[bytes, int], str] = {}

    @property
    def count(self) -> int:
        """The number of stray logs whose topic ids are known."""
        return len(self._directories)

    def clean_up(
        self, assigned: Collection[TopicPartition], fate_of: FateOf, offsets_of: Callable[[TopicPartition], LogOffsets]
    ) -> dict[TopicPartition, bytes]:
        """Find the stray logs, and delete or rename the logs that are not `assigned`, as `fate_of` decides.

        Finishes the deletions that the last stop interrupted. Returns the logs that stay, with their topic ids.
        """
        kept: dict[TopicPartition, bytes] = {}
        for name in sorted(self._disk.listdir(self._path)):
            directory = f"{self._path}/{name}"
            try:
                if file_names.is_deleted_dir(name):
                    self._disk.rmtree(directory)
                elif (partition := file_names.parse_stray_dir(name)) is not None:
                    self._note(directory, partition)
                elif (tp := file_names.parse_partition_dir(name)) is not None and tp not in assigned:
                    self._clean_up(directory, tp, fate_of, offsets_of, kept)
            except OSError as error:
                # No log uses the directory.
                event_log.warning(
                    "directory not removed or renamed, will be retried at the next start", path=directory, reason=error
                )
        return kept

    def _clean_up(
        self,
        directory: str,
        tp: TopicPartition,
        fate_of: FateOf,
        offsets_of: Callable[[TopicPartition], LogOffsets],
        kept: dict[TopicPartition, bytes],
    ) -> None:
        topic_id = read_topic_id(self._disk, directory)
        segments = self._segments(directory)
        if topic_id is None and not segments:
            return  # not a log
        match fate_of(tp, topic_id, self._latest_epoch(directory, segments)):
            case LogFate.DELETE:
                deleted = file_names.deleted_dir(self._path, tp, self._unique())
                self._disk.rename(directory, deleted)
                event_log.info("log deleted: its topic or replica was removed while the broker was stopped", log=tp)
                self._disk.rmtree(deleted)
            case LogFate.SET_ASIDE:
                self.set_aside(directory, tp, topic_id, offsets_of(tp))
            case LogFate.KEEP if topic_id is not None:
                kept[tp] = topic_id

    def set_aside(self, directory: str, tp: TopicPartition, topic_id: bytes | None, offsets: LogOffsets) -> None:
        """Rename the directory of a closed log, after writing the offsets with which it is opened again."""
        data = json.dumps(offsets._asdict()).encode()
        self._disk.write_atomic(f"{directory}/{file_names.STRAY_OFFSETS}", data)
        stray = file_names.stray_dir(self._path, tp, self._unique())
        self._disk.rename(directory, stray)
        if topic_id is not None:
            self._directories[topic_id, tp.partition] = stray
        event_log.warning(
            "log set aside: the metadata does not assign it to this broker, and does not say that it was deleted",
            log=tp,
            now=stray,
        )

    def take_back(self, directory: str, tp: TopicPartition, topic_id: bytes) -> bool:
        """Rename the stray log of a partition to its `directory`, if there is one. Raises OSError.

        A log of another topic id that is there is set aside. Returns whether a directory was renamed.
        """
        stored_id = read_topic_id(self._disk, directory)
        is_other = stored_id is not None and stored_id != topic_id
        if is_other:
            # The offsets in the checkpoint files may be of either.
            self.set_aside(directory, tp, stored_id, LogOffsets())
        stray = self._directories.get((topic_id, tp.partition))
        if stray is None or self._disk.isdir(directory):
            return is_other
        self._disk.rename(stray, directory)
        del self._directories[topic_id, tp.partition]
        event_log.info("log taken back: it is assigned to this broker again", log=tp, was=stray)
        return True

    def offsets(self, directory: str) -> LogOffsets | None:
        """Return the offsets of a log that was set aside; None if it was not, or the checkpoint files have newer ones.

        Offsets that cannot be read are 0: recovery reads the whole log.
        """
        try:
            fields = json.loads(self._disk.read(f"{directory}/{file_names.STRAY_OFFSETS}"))
            return LogOffsets(**fields)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            event_log.warning("offsets of a log that was set aside are damaged", directory=directory, reason=error)
            return LogOffsets()

    def forget_offsets(self, directory: str) -> None:
        """Remove the offsets that a log was set aside with, since the checkpoint files have them. Raises OSError."""
        self._disk.unlink(f"{directory}/{file_names.STRAY_OFFSETS}")

    def position(self, topic_id: bytes, index: int) -> LogPosition | None:
        """Return how far the stray log of a partition goes; None if there is none. Raises OSError."""
        directory = self._directories.get((topic_id, index))
        if directory is None:
            return None
        segments = sorted(self._segments(directory))
        if not segments:
            return LogPosition()
        (base_offset, _), path = file_names.parse_segment_file(segments[-1].rpartition("/")[2]) or (0, ""), segments[-1]
        end_offset, epoch = base_offset, self._latest_epoch(directory, ())
        file = self._disk.open(path, write=False)
        try:
            for found in iter_batches(file, file.size(), base_offset):
                if isinstance(found, Damage) or found.fault is not None:
                    break
                end_offset = found.header.next_offset
                epoch = max(epoch or -1, found.header.leader_epoch)
        finally:
            file.close()
        offsets = self.offsets(directory) or LogOffsets()
        return LogPosition(-1 if epoch is None else epoch, offsets.log_start_offset, end_offset)

    def _note(self, directory: str, partition: int) -> None:
        topic_id = read_topic_id(self._disk, directory)
        if topic_id is None:
            return
        other = self._directories.setdefault((topic_id, partition), directory)
        if other != directory:
            event_log.warning("two stray logs of one partition, the first is used", first=other, second=directory)

    def _segments(self, directory: str) -> list[str]:
        names = self._disk.listdir(directory) if self._disk.isdir(directory) else ()
        parsed = [(file_names.parse_segment_file(name), name) for name in names]
        return [f"{directory}/{name}" for file, name in parsed if file is not None and file[1] == file_names.LOG]

    def _latest_epoch(self, directory: str, segments: Collection[str]) -> int | None:
        """Return the latest leader epoch of a log, -1 if it has no records, None if it is unknown."""
        try:
            epochs = checkpoint_files.decode_epochs(self._disk.read(f"{directory}/{file_names.LEADER_EPOCHS}"))
        except (FileNotFoundError, ValueError):
            epochs = []
        if epochs:
            return epochs[-1][0]
        return None if any(map(self._disk.size, segments)) else -1
