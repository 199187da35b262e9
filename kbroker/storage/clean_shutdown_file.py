""".kafka_cleanshutdown: exists if the last shutdown closed every log of the data directory.

It contains the broker epoch of that process (KIP-966). If it is the latest one that the controller knows, the logs have
everything that the broker has acknowledged. It also says that the process has written transaction-index-checkpoint:
versions that do not write it leave none, which is then no loss.
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


def has_written_transaction_indexes(disk: Disk, data_dir: str) -> bool:
    """Return whether the last process has written transaction-index-checkpoint, as far as the file says."""
    try:
        return json.loads(disk.read(f"{data_dir}/{CLEAN_SHUTDOWN}"))["transactionIndexes"] is True
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


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
    text = f'{{"version":0,"brokerEpoch":{broker_epoch},"transactionIndexes":true}}'
    disk.write_atomic(f"{data_dir}/{CLEAN_SHUTDOWN}", text.encode())
