"""`kbroker backup` and `kbroker restore`: copies of the data directory of a broker, or of all brokers of one machine.

A backup is what a `kill -9` of the brokers would leave, so a broker that starts on it recovers as after that. The
processes are paused (SIGSTOP) while all files are opened and their sizes read, and go on while the files are copied.
That is enough: logs and their indexes only grow, and other files are replaced by renames, except for the journal of the
coordination service, which is read during the pause. A backup is complete once it has its manifest.
"""

import json
import os
import posixpath
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import AsJson, argument
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.values import count_text, format_size
from kbroker.cli.start.directories import is_locked
from kbroker.storage import file_names

MANIFEST = "backup.json"
VERSION = 1
CHUNK_BYTES = 1 << 20
# Processes that do not stop within this time are in an operation of a disk that does not respond.
STOP_S = 5.0
# If this command is killed during the pause, the processes go on after this time.
MAX_PAUSE_S = 10
COORDINATION = "coordination"
JOURNAL = "coordination.journal"
# Files that a start removes or creates, and the probe of a broker's disk.
LEFT_OUT = (file_names.CLEANED, file_names.DELETED, file_names.TEMPORARY, file_names.LOCK, "write-probe")


class OpenFile(NamedTuple):
    """A file of the data directory, as it was during the pause. `content`: of a file that may be rewritten later."""

    path: str
    descriptor: int
    size: int
    mode: int
    content: bytes | None


def backup(
    directory: Annotated[str, argument("DIR")], target: Annotated[str, argument("BACKUP")], as_json: AsJson = False
) -> None:
    """Copy the data directory of a broker, which may run, or of all brokers of `kbroker start --brokers N`.

    BACKUP is a new directory. It has every record that was acknowledged before the backup began, with the state of
    groups and transactions of the same moment. Run it as the broker's user: it pauses the broker for some milliseconds.

    Example: kbroker backup /var/lib/kbroker /backup/2026-12-01
    """
    from kbroker.runtime.real_disk import RealDisk  # with asyncio
    from kbroker.runtime.system import raise_descriptor_limit

    directory = directory.rstrip("/") or "/"
    if not os.path.isdir(f"{directory}/{COORDINATION}"):
        raise CliError(
            f"{directory} has no metadata of topics: it is no data directory, or that of one broker of a cluster, "
            "which alone is not a backup"
        )
    if f"{os.path.realpath(target)}/".startswith(f"{os.path.realpath(directory)}/"):
        raise usage_error(f"{target} is in {directory}: put the backup elsewhere, on another disk")
    try:
        os.mkdir(target, 0o700)
    except FileExistsError:
        raise usage_error(f"{target} exists: a backup needs a new directory") from None
    raise_descriptor_limit()
    with ExitStack() as stack:
        with _paused(directory) as began_s:
            files = [_open(directory, path, stack) for path in _paths(directory)]
        paused_ms = round((time.monotonic() - began_s) * 1000)
        total = sum(file.size for file in files)
        print_note(f"{directory} was paused for {paused_ms} ms; copying {format_size(total)}")
        rows = [
            {"path": file.path, "size": file.size, "mode": file.mode, "crc32": _copy(file, f"{target}/{file.path}")}
            for file in files
        ]
    manifest = {"version": VERSION, "time_ms": round(time.time() * 1000)}
    # One call: a sync of each of some thousand files takes half a minute.
    os.sync()
    RealDisk().write_atomic(f"{target}/{MANIFEST}", json.dumps({**manifest, "files": rows}, indent=0).encode())
    _report(as_json, target, len(rows), total, {"paused_ms": paused_ms})


def restore(
    source: Annotated[str, argument("BACKUP")], directory: Annotated[str, argument("DIR")], as_json: AsJson = False
) -> None:
    """Copy a backup into an empty data directory, and check that it is complete and undamaged.

    Run it as the broker's user. Never start a restored broker while the original of the same cluster runs elsewhere.

    Example: kbroker restore /backup/2026-12-01 /var/lib/kbroker
    """
    from kbroker.runtime.real_disk import RealDisk  # with asyncio

    rows = _read_manifest(source)
    os.makedirs(directory, exist_ok=True)
    if os.listdir(directory):
        raise usage_error(f"{directory} is not empty: restore into an empty directory, or move its content away")
    lock = RealDisk().lock(f"{directory}/{file_names.LOCK}")
    # Without the metadata of its topics no broker starts on a directory that is not complete.
    incomplete = f"{COORDINATION}.incomplete"
    try:
        for row in rows:
            path = row["path"]
            name = path.replace(COORDINATION, incomplete, 1) if path.startswith(f"{COORDINATION}/") else path
            _copy_back(f"{source}/{path}", f"{directory}/{name}", row)
        os.sync()
        os.rename(f"{directory}/{incomplete}", f"{directory}/{COORDINATION}")
        RealDisk().sync_dir(directory)
    except BaseException:
        for entry in os.scandir(directory):
            shutil.rmtree(entry) if entry.is_dir() else os.unlink(entry)
        raise
    finally:
        lock.close()
    _report(as_json, directory, len(rows), sum(row["size"] for row in rows), {})


@contextmanager
def _paused(directory: str) -> Iterator[float]:
    """Pause the processes that have locked the directory, or the directories of brokers in it.

    Yields when the pause began. If no process runs, none can start meanwhile.
    """
    from kbroker.runtime.real_disk import RealDisk, lock_owner  # with asyncio

    with ExitStack() as stack:
        owners = []
        for lock in sorted(Path(directory).glob(f"**/{file_names.LOCK}")):
            if not is_locked(str(lock)):
                stack.callback(RealDisk().lock(str(lock)).close)
                continue
            owner = lock_owner(str(lock))
            if owner is None:
                raise CliError(f"{lock.parent} is in use by a process that is not here: run this in its container")
            owners.append(owner[0])
        if owners:
            resume = f"sleep {MAX_PAUSE_S}; kill -CONT {' '.join(map(str, owners))}"
            watchdog = subprocess.Popen(["sh", "-c", resume], start_new_session=True, stdin=subprocess.DEVNULL)
            stack.callback(watchdog.wait)
            stack.callback(os.killpg, watchdog.pid, signal.SIGKILL)
        began_s = time.monotonic()
        for pid in owners:
            stack.callback(_resume, pid)
            try:
                os.kill(pid, signal.SIGSTOP)
            except PermissionError:
                raise CliError(f"process {pid} is of another user: run this as the broker's user") from None
        for pid in owners:
            while not _is_stopped(pid):
                if time.monotonic() > began_s + STOP_S:
                    raise CliError(f"process {pid} does not stop: it waits for its disk")
                time.sleep(0.0005)
        yield began_s


def _resume(pid: int) -> None:
    # It has ended, or is of another user and was not paused.
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped."""
    try:
        stats = [Path(task.path, "stat").read_text() for task in os.scandir(f"/proc/{pid}/task")]
    except OSError:
        # A thread has ended meanwhile.
        return False
    return all(stat.rpartition(")")[2].split()[0] in "Tt" for stat in stats)


def _paths(directory: str) -> Iterator[str]:
    """Yield the paths of the files that belong to a backup, relative to the directory."""
    for root, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not file_names.is_deleted_dir(name)]
        for name in names:
            if not name.endswith(LEFT_OUT):
                yield f"{root}/{name}"[len(directory) + 1 :]


def _open(directory: str, path: str, stack: ExitStack) -> OpenFile:
    descriptor = os.open(f"{directory}/{path}", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    status = os.fstat(descriptor)
    content = os.pread(descriptor, status.st_size, 0) if path.endswith(JOURNAL) else None
    return OpenFile(path, descriptor, status.st_size, status.st_mode & 0o777, content)


def _copy(file: OpenFile, path: str) -> int:
    """Copy a file, and return the CRC-32 of its content."""
    chunks = _chunks(file.descriptor, file.size) if file.content is None else [file.content]
    size, crc = _write(path, file.mode, chunks)
    if size < file.size:
        raise CliError(f"{file.path} was truncated during the backup: remove {posixpath.dirname(path)} and try again")
    return crc


def _chunks(descriptor: int, size: int) -> Iterator[bytes]:
    for position in range(0, size, CHUNK_BYTES):
        yield os.pread(descriptor, min(CHUNK_BYTES, size - position), position)


def _write(path: str, mode: int, chunks: Iterable[bytes]) -> tuple[int, int]:
    """Write a new file. Returns its size and the CRC-32."""
    os.makedirs(posixpath.dirname(path), exist_ok=True)
    size = crc = 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb", buffering=0) as target:
        for chunk in chunks:
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            while chunk:
                chunk = chunk[target.write(chunk) :]
    return size, crc


def _copy_back(source: str, path: str, row: dict[str, Any]) -> None:
    """Copy a file of a backup. Raises CliError if it is missing or not the one that was written."""
    try:
        with open(source, "rb") as file:
            found = _write(path, row["mode"], iter(lambda: file.read(CHUNK_BYTES), b""))
    except FileNotFoundError:
        raise CliError(f"the backup is incomplete: {source} is missing; nothing was restored") from None
    if found != (row["size"], row["crc32"]):
        raise CliError(f"the backup is damaged: {source} is not what was written; nothing was restored")


def _read_manifest(source: str) -> list[dict[str, Any]]:
    """Return the files of a backup. Raises CliError."""
    try:
        manifest = json.loads(Path(source, MANIFEST).read_bytes())
    except FileNotFoundError:
        raise CliError(f"{source} is no complete backup: {MANIFEST} is missing") from None
    except ValueError:
        raise CliError(f"the backup is damaged: {source}/{MANIFEST} cannot be read") from None
    with suppress(KeyError, TypeError):
        if manifest["version"] != VERSION:
            raise CliError(f"{source} was made by a newer version of kbroker")
        for row in manifest["files"]:
            is_inside = posixpath.normpath(row["path"]) == row["path"] and not row["path"].startswith(("/", "../"))
            if not is_inside or not all(type(row[name]) is int for name in ("size", "mode", "crc32")):
                raise TypeError
        if any(row["path"].startswith(f"{COORDINATION}/") for row in manifest["files"]):
            files: list[dict[str, Any]] = manifest["files"]
            return files
    raise CliError(f"the backup is damaged: {source}/{MANIFEST} has other fields")


def _report(as_json: bool, directory: str, files: int, size: int, more: dict[str, int]) -> None:
    if as_json:
        print_json({"directory": directory, "files": files, "bytes": size, **more})
    else:
        print(f"{directory}: {count_text(files, 'file')}, {format_size(size)}")
