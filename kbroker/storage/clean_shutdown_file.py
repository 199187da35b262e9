""".kafka_cleanshutdown: exists if the last shutdown closed every log of the data directory.

It contains the broker epoch of that process (KIP-966). If it is the latest one that the controller knows, the logs have
everything that the broker has acknowledged.
"""

import json

from kbroker.runtime.disk import Disk
from kbroker.storage.file_names import CLEAN_SHUTDOWN

NO_BROKER_EPOCH = -1


def read_clean_broker_epoch(disk: Disk, data_dir: str) -> int:
    """Return the broker epoch of the last process if its shutdown was clean; -1 if it was not, or it is unknown."""
    try:
        epoch = json.loads(disk.read(f"{data_dir}/{CLEAN_SHUTDOWN}"))["brokerEpoch"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return NO_BROKER_EPOCH
    return epoch if type(epoch) is int else NO_BROKER_EPOCH


def consume_clean_shutdown_file(disk: Disk, data_dir: str) -> bool:
    """Return whether the last shutdown was clean, and remove the file durably: after a crash it must not exist."""
    path = f"{data_dir}/{CLEAN_SHUTDOWN}"
    if not disk.exists(path):
        return False
    disk.unlink(path)
    disk.sync_dir(data_dir)
    return True


def write_clean_shutdown_file(disk: Disk, data_dir: str, broker_epoch: int) -> None:
    """Write the file durably. Call it only when every log of the directory was closed without an error."""
    text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
    disk.write_atomic(f"{data_dir}/{CLEAN_SHUTDOWN}", text.encode())
