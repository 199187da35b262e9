"""The directory of `kbroker start --brokers N`, which has the data directories of its brokers."""

import os

from kbroker.storage.file_names import META_PROPERTIES, PARTITION_METADATA


def broker_directory(directory: str, node_id: int) -> str:
    return f"{directory}/broker-{node_id}"


def is_cluster_directory(directory: str) -> bool:
    """Return whether a directory is that of several brokers.

    A data directory may have a partition 1 of a topic `broker`, whose log has the same name.
    """
    first = broker_directory(directory, 1)
    return (
        os.path.isdir(first)
        and not os.path.exists(f"{directory}/{META_PROPERTIES}")
        and not os.path.exists(f"{first}/{PARTITION_METADATA}")
    )
