"""Names of files and directories, as Apache Kafka gives them.

A partition lives in `<topic>-<partition>/`; a segment's files begin with its base offset in 20 digits.
"""

import re

from kbroker.common import TopicPartition

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

# Added to a file's name: being written by compaction; complete, to replace its sources; to be removed.
CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
TEMPORARY = ".tmp"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

# In each data directory.
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_SEGMENT_FILE = re.compile(r"(\d{20})(\.[a-z]+)")
_PARTITION_DIR = re.compile(r"(.+)-(\d{1,10})")
_DELETED_DIR = re.compile(r".+-\d{1,10}\.[0-9a-f]{32}-delete")
_MAX_NAME = 255


def segment_file(directory: str, base_offset: int, suffix: str) -> str:
    """Path of one of a segment's files."""
    return f"{directory}/{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """(offset, suffix) of a segment's or snapshot's file, None for another name."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def partition_dir(data_dir: str, tp: TopicPartition) -> str:
    return f"{data_dir}/{tp.topic}-{tp.partition}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The partition whose directory has this name; None for deleted ones and for what is no partition."""
    if is_deleted_dir(name):
        return None
    match = _PARTITION_DIR.fullmatch(name)
    return TopicPartition(match[1], int(match[2])) if match else None


def deleted_dir(data_dir: str, tp: TopicPartition, unique: str) -> str:
    """Where a deleted partition waits for its removal; `unique` is 32 hex digits. The topic is cut if too long."""
    suffix = f"-{tp.partition}.{unique}-delete"
    return f"{data_dir}/{tp.topic[: _MAX_NAME - len(suffix)]}{suffix}"


def stray_dir(data_dir: str, tp: TopicPartition, unique: str) -> str:
    """Where a partition of no known topic is put."""
    suffix = f"-{tp.partition}.{unique}-stray"
    return f"{data_dir}/{tp.topic[: _MAX_NAME - len(suffix)]}{suffix}"


def is_deleted_dir(name: str) -> bool:
    return _DELETED_DIR.fullmatch(name) is not None
