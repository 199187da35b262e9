""".kafka_cleanshutdown: exists if the last shutdown closed every log of the data directory."""

from kbroker.runtime.disk import Disk
from kbroker.storage.file_names import CLEAN_SHUTDOWN


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
