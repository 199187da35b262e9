"""Finds what the next start would repair in a log, by opening it on an OverlayDisk."""

from typing import TYPE_CHECKING

from kbroker.common import KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk
from kbroker.storage.checkpoint_files import IndexEntries
from kbroker.storage.inspect.overlay_disk import OverlayDisk
from kbroker.storage.partition_metadata import read_topic_id
from kbroker.storage.recovery.open_log import open_log

if TYPE_CHECKING:
    from random import Random


def dry_run_recovery(
    disk: Disk,
    directory: str,
    tp: TopicPartition,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    now_ms: int,
    random: "Random",
    transaction_indexes: IndexEntries | None,
) -> list[str]:
    """Return the repairs that opening the log would make, one line each. Changes nothing."""
    try:
        log = open_log(
            OverlayDisk(disk),
            directory,
            tp,
            read_topic_id(disk, directory) or bytes(16),
            TopicConfig.of(),
            recovery_point,
            clean,
            now_ms,
            background=lambda job, then, delay_ms=0, /: None,
            random=random,
            log_start_offset=log_start_offset,
            transaction_indexes=transaction_indexes,
        )
    except (KafkaError, OSError) as error:
        return [f"{directory} cannot be opened: {error}"]
    return list(log.repairs)
