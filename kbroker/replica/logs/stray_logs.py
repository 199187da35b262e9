"""Stray logs: directories of partitions that are deleted, reassigned or unknown to this broker. Used in threads.

As in Kafka, the broker renames them to `.stray` instead of deleting them: it cannot know why they are not assigned.
"""

from collections.abc import Callable, Collection

from kbroker.common import TopicPartition
from kbroker.runtime.disk import Disk
from kbroker.runtime.event_log import EventLogger
from kbroker.storage import file_names
from kbroker.storage.partition_metadata import read_topic_id

event_log = EventLogger("kbroker.logs")

# Returns the topic id of a log that is not assigned now but may be assigned again, None for a stray log. The topic id
# of the parameter is None if the log's file with it is lost.
MayReturn = Callable[[TopicPartition, bytes | None], bytes | None]


class StrayLogs:
    """The stray logs of one data directory. `unique` returns a name suffix that is not used yet."""

    def __init__(self, disk: Disk, path: str, unique: Callable[[], str]) -> None:
        self._disk = disk
        self._path = path
        self._unique = unique

    def clean_up(self, assigned: Collection[TopicPartition], may_return: MayReturn) -> dict[TopicPartition, bytes]:
        """Finish the deletions that the last stop interrupted, and rename the logs that are not `assigned`.

        Logs that `may_return` stay. Returns these, with their topic ids.
        """
        kept: dict[TopicPartition, bytes] = {}
        for name in self._disk.listdir(self._path):
            directory = f"{self._path}/{name}"
            try:
                if file_names.is_deleted_dir(name):
                    self._disk.rmtree(directory)
                    continue
                tp = file_names.parse_partition_dir(name)
                if tp is None or tp in assigned or not self._is_log(directory):
                    continue
                topic_id = may_return(tp, read_topic_id(self._disk, directory))
                if topic_id is None:
                    self._rename(directory, tp)
                else:
                    kept[tp] = topic_id
            except OSError as error:
                # No log uses the directory.
                event_log.warning(
                    "directory not removed or renamed, will be retried at the next start",
                    path=directory,
                    reason=error,
                )
        return kept

    def replace(self, directory: str, tp: TopicPartition, topic_id: bytes) -> bool:
        """Rename the log of a partition if it belongs to another topic id. Returns whether it did. Raises OSError."""
        stored_id = read_topic_id(self._disk, directory)
        if stored_id is None or stored_id == topic_id:
            return False
        self._rename(directory, tp)
        return True

    def _is_log(self, directory: str) -> bool:
        if read_topic_id(self._disk, directory) is not None:
            return True
        # The file with the topic id may be lost.
        names = self._disk.listdir(directory) if self._disk.isdir(directory) else ()
        parsed = map(file_names.parse_segment_file, names)
        return any(file is not None and file[1] == file_names.LOG for file in parsed)

    def _rename(self, directory: str, tp: TopicPartition) -> None:
        stray = file_names.stray_dir(self._path, tp, self._unique())
        self._disk.rename(directory, stray)
        event_log.warning("directory of no replica of this broker, renamed", directory=directory, now=stray)
