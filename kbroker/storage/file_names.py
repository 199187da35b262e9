"""Names of the files and directories in a data directory, as in Apache Kafka.

The log of a partition is in `<topic>-<partition>/`. The files of a segment begin with its base offset in 20 digits.
"""

import re

from kbroker.common import TopicPartition

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

# Suffixes of files: written by the cleaner; complete, and about to replace the sources; to be unlinked; temporary.
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
# In the directory of a stray log: its offsets in the checkpoint files.
STRAY_OFFSETS = "stray-offsets"

# Files that exist once per data directory.
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
# Only kbroker has it.
TRANSACTION_INDEXES = "transaction-index-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
# Not a file of Apache Kafka.
METADATA_SEEN = "last-metadata-seen"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"

_SEGMENT_FILE = re.compile(r"(\d{20})(\.[a-z]+)")
_PARTITION_DIR = re.compile(r"(.+)-(\d{1,10})")
_DELETED_DIR = re.compile(r".+-\d{1,10}\.[0-9a-f]{32}-delete")
_STRAY_DIR = re.compile(r".+-(\d{1,10})\.[0-9a-f]{32}-stray")
_MAX_NAME = 255


def segment_file(directory: str, base_offset: int, suffix: str) -> str:
    """Return the path of a file of a segment."""
    return f"{directory}/{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Return (offset, suffix) of the file of a segment or snapshot; None for other names."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def partition_dir(data_dir: str, tp: TopicPartition) -> str:
    return f"{data_dir}/{tp.topic}-{tp.partition}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """Return the partition whose directory has this name; None for a deleted one, and for other names."""
    if is_deleted_dir(name):
        return None
    match = _PARTITION_DIR.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def deleted_dir(data_dir: str, tp: TopicPartition, unique: str) -> str:
    """Return the new path of a deleted partition's directory. `unique` is 32 hex digits; a long topic name is cut."""
    suffix = f"-{tp.partition}.{unique}-delete"
    return f"{data_dir}/{tp.topic[: _MAX_NAME - len(suffix)]}{suffix}"


def stray_dir(data_dir: str, tp: TopicPartition, unique: str) -> str:
    """Return the new path of the directory of a log that is set aside."""
    suffix = f"-{tp.partition}.{unique}-stray"
    return f"{data_dir}/{tp.topic[: _MAX_NAME - len(suffix)]}{suffix}"


def is_stray_dir(name: str) -> bool:
    return _STRAY_DIR.fullmatch(name) is not None


def parse_stray_dir(name: str) -> int | None:
    """Return the partition index of a stray log's directory, None for other names. The topic's name may be cut."""
    match = _STRAY_DIR.fullmatch(name)
    return int(match[1]) if match else None


def is_deleted_dir(name: str) -> bool:
    return _DELETED_DIR.fullmatch(name) is not None
