"""Checks of the data directory, its disk and its file system."""

from collections.abc import Iterable, Iterator

from kbroker.cli.common.values import count_text, format_size
from kbroker.cli.doctor.host import CheckContext, CheckResult, ok, problem, warning
from kbroker.cli.start.directories import is_cluster_directory
from kbroker.runtime.disk import Disk
from kbroker.storage import checkpoint_files, file_names, metadata_files

MIB, GIB = 1 << 20, 1 << 30
MIN_FREE_BYTES = 100 * MIB
LOW_FREE_BYTES, LOW_FREE_SHARE = GIB, 0.05
# File systems on which locks, syncs and renames may not work as on a local disk.
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "afs", "ncpfs")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def check_data_directory(context: CheckContext) -> Iterator[CheckResult]:
    name, path, parent = "data directory", context.data_dir, context.existing_parent()
    if not context.disk.isdir(parent):
        yield problem(name, f"{parent} is not a directory", "Choose another with --data-dir.")
        return
    if is_cluster_directory(path):
        advice = f"Check each of them, for example with --config {path}/broker-1.properties."
        yield problem(name, f"{path} has the data of several brokers", advice)
        return
    if not context.host.is_writable(parent):
        advice = "Grant the broker's user read, write and search permission, or choose another with --data-dir."
        yield problem(name, f"{parent} is not readable and writable", advice)
        return
    if parent != path:
        yield ok(name, f"{path} will be created")
        return
    try:
        properties = metadata_files.read_meta_properties(context.disk, path)
    except ValueError as error:
        advice = "Restore it: without it the broker does not start."
        yield problem(name, f"{path}/{file_names.META_PROPERTIES} is damaged: {error}", advice)
        return
    if properties is not None and properties.node_id != context.config.node_id:
        advice = f"Set node.id={properties.node_id}, or choose another directory with --data-dir."
        yield problem(name, f"{path} has the data of node.id={properties.node_id}", advice)
        return
    use = "in use by a running broker" if context.is_running else "not in use"
    partitions = count_text(len(context.partitions()), "partition")
    yield ok(name, f"{path} is writable, with {partitions}; {use}")
    yield from _check_stray_logs(context)


def _check_stray_logs(context: CheckContext) -> Iterable[CheckResult]:
    """Report the logs that the broker has set aside because the metadata assigns them to no replica of it."""
    stray = [name for name in context.disk.listdir(context.data_dir) if file_names.is_stray_dir(name)]
    if stray:
        size = sum(_log_size(context.disk, f"{context.data_dir}/{name}") for name in stray)
        logs = f"{count_text(len(stray), 'log')} with {format_size(size)}"
        message = f"{logs} belonged to no replica of this broker and were set aside, such as {stray[0]}"
        advice = (
            "If topics are missing, restore the metadata in the coordination service: the logs come back with them. "
            "Only if all of these topics were deleted, or other replicas are in sync: "
            f"rm -r {context.data_dir}/*-stray deletes their records for good."
        )
        return [warning("stray logs", message, advice)]
    return []


def check_disk_space(context: CheckContext) -> Iterable[CheckResult]:
    total, free = context.disk.usage(context.existing_parent())
    message = f"{format_size(free)} of {format_size(total)} free"
    if free < MIN_FREE_BYTES:
        return [problem("disk space", message, "Free space: the broker refuses appends while the disk is full.")]
    if free < LOW_FREE_BYTES or free < LOW_FREE_SHARE * total:
        advice = "Free space, or retain less with retention.bytes and retention.ms."
        return [warning("disk space", message, advice)]
    limit = context.config.get("log.retention.bytes")
    partitions = context.partitions()
    stored = sum(_log_size(context.disk, path) for path in partitions.values())
    if isinstance(limit, int) and limit >= 0 and limit * len(partitions) > free + stored:
        allowed = f"{format_size(limit * len(partitions))} in {count_text(len(partitions), 'partition')}"
        message += f"; log.retention.bytes allows {allowed}"
        advice = "Lower log.retention.bytes: the disk will be full before retention deletes segments."
        return [warning("disk space", message, advice)]
    return [ok("disk space", f"{message}; the logs use {format_size(stored)}")]


def _log_size(disk: Disk, path: str) -> int:
    """Return the size of a partition's segments in bytes, without those that a running broker removes meanwhile."""
    size = 0
    for name in disk.listdir(path):
        if name.endswith(file_names.LOG):
            try:
                size += disk.size(f"{path}/{name}")
            except FileNotFoundError:
                continue
    return size


def check_file_system(context: CheckContext) -> Iterator[CheckResult]:
    file_system = context.host.file_system(context.existing_parent())
    if file_system is None:
        yield ok("file system", "unknown on this system")
        return
    text = f"{file_system.kind} at {file_system.mount_point}"
    if file_system.kind in NETWORK_FILE_SYSTEMS:
        advice = "Use a local disk: locks, syncs and renames over a network may not be reliable."
        yield warning("file system", f"{text} is a network file system", advice)
    elif file_system.kind in MEMORY_FILE_SYSTEMS:
        advice = "Use a disk, unless the data may be lost with the machine."
        yield warning("file system", f"{text} is in memory", advice)
    else:
        yield ok("file system", text)
    yield from _check_reads(context)
    yield from _check_write_caches(context.host.write_caches(file_system.device))


def _check_reads(context: CheckContext) -> Iterable[CheckResult]:
    """Try an existing file, as nothing may be written."""
    for path in (f"{context.data_dir}/{file_names.META_PROPERTIES}", *_segments(context)):
        if not context.disk.exists(path):
            continue
        file = context.disk.open(path, write=False)
        if not file.pread(1, 0) or file.pread_nowait(1, 0) is not None:
            return [ok("reads", "cached data is read without a thread")]
        else:
            advice = "No action needed; consuming costs less on a local file system such as ext4 or XFS."
            return [warning("reads", "always use a thread: this file system hides what is cached", advice)]
    return [ok("reads", "whether they need a thread is unknown before the first start")]


def _segments(context: CheckContext) -> Iterator[str]:
    for path in context.partitions().values():
        yield from (f"{path}/{name}" for name in context.disk.listdir(path) if name.endswith(file_names.LOG))


def _check_write_caches(caches: dict[str, str]) -> Iterator[CheckResult]:
    if not caches:
        yield ok("write cache", "unknown for this disk")
    for disk, mode in sorted(caches.items()):
        if mode == "write back":
            message = f"{disk} writes back: a power failure loses what is not synced, and syncs wait for the disk"
        else:
            message = f"{disk} is {mode}"
        yield ok("write cache", message)


def check_last_stop(context: CheckContext) -> Iterator[CheckResult]:
    disk, path = context.disk, context.data_dir
    partitions = context.partitions()
    if context.is_running:
        yield ok("last stop", "a broker is running on the data directory")
        return
    if not partitions or disk.exists(f"{path}/{file_names.CLEAN_SHUTDOWN}"):
        yield ok("last stop", "clean" if partitions else "never started here, or without topics")
        return
    try:
        recovery_points = checkpoint_files.read_offsets(disk, path, file_names.RECOVERY_POINTS)
    except (ValueError, IndexError) as error:
        recovery_points = {}
        message = f"{file_names.RECOVERY_POINTS} is damaged: {error}"
        yield warning("last stop", message, "No action needed: the next start reads all of the logs.")
    unchecked = [_bytes_to_recover(disk, path, recovery_points.get(tp, 0)) for tp, path in partitions.items()]
    where = count_text(sum(map(bool, unchecked)), "partition")
    message = f"not clean: the next start reads up to {format_size(sum(unchecked))} in {where}"
    yield warning("last stop", message, f"Run kbroker log verify {path} to check for damage first.")


def _bytes_to_recover(disk: Disk, directory: str, recovery_point: int) -> int:
    """Return the size in bytes of the segments that end after the recovery point."""
    parsed = [(file_names.parse_segment_file(name), name) for name in disk.listdir(directory)]
    segments = sorted((file[0], name) for file, name in parsed if file is not None and file[1] == file_names.LOG)
    if not segments:
        return 0
    ends = [base for base, _ in segments[1:]]
    return sum(
        disk.size(f"{directory}/{name}")
        for (_, name), end in zip(segments, [*ends, None], strict=True)
        if end is None or end > recovery_point
    )
