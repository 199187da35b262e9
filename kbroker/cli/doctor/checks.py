"""The checks of `kbroker doctor`: each gives what it found, and for what is not well one sentence of advice.

A check asks its machine and its disk, both passed in, and decides nothing else.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kbroker.cli.common.formatting import count_text, format_size
from kbroker.cli.doctor.host import Machine
from kbroker.common import TopicPartition
from kbroker.config import BrokerConfig
from kbroker.config.acting import BROKER, without_effect
from kbroker.config.broker.listeners import WILDCARDS, Endpoint
from kbroker.runtime.disk import Disk
from kbroker.storage import file_names, meta_properties

OK, WARNING, PROBLEM = "ok", "warning", "problem"

MIB, GIB = 1 << 20, 1 << 30
# The disk: too full to go on, and nearly so.
LEAST_FREE, LITTLE_FREE, LITTLE_FREE_SHARE = 100 * MIB, GIB, 0.05
# Files that a partition keeps open (its active segment, those being read and their indexes), and all else.
FILES_PER_PARTITION, OTHER_FILES = 4, 1000
LITTLE_MEMORY = 256 * MIB
MUCH_SWAPPED = 0.5
CLOCK_SLACK_MS = 60_000
# Locks, syncs and renames of these are not, or not always, those of a disk.
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "afs", "ncpfs")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


class Verdict(NamedTuple):
    """What a check found. `advice` is empty when there is nothing to do."""

    check: str
    status: str
    found: str
    advice: str = ""


class Patient(NamedTuple):
    """What is looked at."""

    machine: Machine
    disk: Disk
    config: BrokerConfig

    @property
    def data_dir(self) -> str:
        return self.config.log_dirs[0]

    @property
    def is_used(self) -> bool:
        """Whether a broker runs on the data directory."""
        return self.machine.is_locked(f"{self.data_dir}/{file_names.LOCK}")

    def partitions(self) -> dict[TopicPartition, str]:
        if not self.disk.isdir(self.data_dir):
            return {}
        found = ((file_names.parse_partition_dir(name), name) for name in self.disk.listdir(self.data_dir))
        return {tp: f"{self.data_dir}/{name}" for tp, name in found if tp is not None and not name.endswith("-stray")}

    def existing(self) -> str:
        """The data directory or, before the first start, where it will be made."""
        path = self.data_dir
        while not self.disk.exists(path):
            shorter = path.rpartition("/")[0]
            path = shorter or ("/" if path.startswith("/") else ".")
        return path


Check = Callable[[Patient], Iterator[Verdict]]


def check_configuration(patient: Patient) -> Iterator[Verdict]:
    config = patient.config
    for name, many in (("log.dirs", config.log_dirs), ("listeners", config.listeners)):
        if len(many) != 1:
            yield Verdict(
                "configuration", PROBLEM, f"{name} names {len(many)}", f"Name one: kbroker has one of {name}."
            )
    idle = without_effect(BROKER, config.static)
    for sentence in idle:
        yield Verdict("configuration", WARNING, sentence, "Remove it, or do not count on it.")
    if not idle:
        yield Verdict("configuration", OK, f"node.id={config.node_id}, {len(config.static)} properties set")


def check_listener(patient: Patient) -> Iterator[Verdict]:
    machine, listener = patient.machine, patient.config.listeners[0]
    error = machine.bind_error(listener.host, listener.port)
    if error is None:
        yield Verdict("listener", OK, f"{listener} can be bound")
        return
    host = "127.0.0.1" if listener.host in WILDCARDS else listener.host
    cluster = machine.ask(host, listener.port) if machine.connect_error(host, listener.port) is None else None
    if cluster is None:
        advice = "Stop what listens there, or choose another port with --listen."
        yield Verdict("listener", PROBLEM, f"{listener} cannot be bound: {error.strerror or error}", advice)
        return
    own = identity_of(patient)
    serving = f"a broker of cluster {cluster.cluster_id} serves {listener}: {cluster.topics} topics"
    if own is None or own.cluster_id != cluster.cluster_id:
        advice = "Stop it, or choose another port with --listen."
        yield Verdict("listener", PROBLEM, f"{serving}, and its data is not in {patient.data_dir}", advice)
        return
    yield Verdict("listener", OK, serving)
    if cluster.without_leader:
        shown = ", ".join(cluster.without_leader[:5]) + (", ..." if len(cluster.without_leader) > 5 else "")
        advice = "See in the broker's log why their logs could not be opened."
        yield Verdict("topics", PROBLEM, f"without a leader: {shown}", advice)


def check_advertised(patient: Patient) -> Iterator[Verdict]:
    machine, endpoint = patient.machine, patient.config.advertised_listeners[0]
    listener = patient.config.listeners[0]
    try:
        addresses = machine.resolve(endpoint.host)
    except OSError as error:
        advice = "Advertise a name that its clients can resolve, with --advertise."
        yield Verdict("advertised address", PROBLEM, f"{endpoint.host} cannot be resolved: {error.strerror}", advice)
        return
    if all(_is_loopback(address) for address in addresses) and not _is_local(listener):
        found = f"{endpoint.address} is this machine alone, but {listener} listens to others"
        advice = "Advertise a name that other machines know, with --advertise, or listen on 127.0.0.1 only."
        yield Verdict("advertised address", WARNING, found, advice)
        return
    if patient.is_used and endpoint.port:
        refusal = machine.connect_error(endpoint.host, endpoint.port)
        if refusal is not None:
            found = f"the broker runs, but {endpoint.address} cannot be reached: {refusal.strerror or refusal}"
            advice = "Clients get this address from the broker and will fail: mend the network or --advertise another."
            yield Verdict("advertised address", PROBLEM, found, advice)
            return
    yield Verdict("advertised address", OK, f"{endpoint.address} is {', '.join(addresses)}")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _is_local(listener: Endpoint) -> bool:
    return listener.host == "localhost" or _is_loopback(listener.host)


def identity_of(patient: Patient) -> meta_properties.MetaProperties | None:
    try:
        return meta_properties.read_meta_properties(patient.disk, patient.data_dir)
    except ValueError:
        return None


def check_data_directory(patient: Patient) -> Iterator[Verdict]:
    path, existing = patient.data_dir, patient.existing()
    if not patient.disk.isdir(existing):
        yield Verdict("data directory", PROBLEM, f"{existing} is no directory", "Choose another with --data-dir.")
        return
    if not patient.machine.may_write(existing):
        advice = "Give the user who runs the broker all rights to it, or choose another with --data-dir."
        yield Verdict("data directory", PROBLEM, f"{existing} cannot be read and written", advice)
        return
    if existing != path:
        yield Verdict("data directory", OK, f"{path} will be made")
        return
    try:
        found = meta_properties.read_meta_properties(patient.disk, path)
    except ValueError as error:
        advice = "Restore it; the broker does not start without knowing whose data this is."
        yield Verdict("data directory", PROBLEM, f"{path}/{meta_properties.FILE} is damaged: {error}", advice)
        return
    if found is not None and found.node_id != patient.config.node_id:
        advice = f"Set node.id={found.node_id}, or choose another directory with --data-dir."
        yield Verdict("data directory", PROBLEM, f"{path} is the data of node.id={found.node_id}", advice)
        return
    used = "used by a running broker" if patient.is_used else "free"
    yield Verdict(
        "data directory", OK, f"{path} is writable, with {count_text(len(patient.partitions()), 'partition')}; {used}"
    )


def check_disk_space(patient: Patient) -> Iterator[Verdict]:
    total, free = patient.disk.usage(patient.existing())
    found = f"{format_size(free)} of {format_size(total)} are free"
    if free < LEAST_FREE:
        yield Verdict("disk space", PROBLEM, found, "Make room: a full disk takes partitions offline.")
        return
    if free < LITTLE_FREE or free < LITTLE_FREE_SHARE * total:
        yield Verdict("disk space", WARNING, found, "Make room, or keep less with retention.bytes and retention.ms.")
        return
    limit = patient.config.get("log.retention.bytes")
    partitions = patient.partitions()
    stored = sum(_log_size(patient.disk, path) for path in partitions.values())
    if isinstance(limit, int) and limit >= 0 and limit * len(partitions) > free + stored:
        allowed = f"{format_size(limit * len(partitions))} in {count_text(len(partitions), 'partition')}"
        found += f"; log.retention.bytes allows {allowed}"
        yield Verdict("disk space", WARNING, found, "Lower log.retention.bytes: the disk is full before it acts.")
        return
    yield Verdict("disk space", OK, f"{found}; the logs take {format_size(stored)}")


def _log_size(disk: Disk, path: str) -> int:
    """Bytes of a partition's segments; of files that a running broker removes meanwhile none."""
    size = 0
    for name in disk.listdir(path):
        if name.endswith(file_names.LOG):
            try:
                size += disk.size(f"{path}/{name}")
            except FileNotFoundError:
                continue
    return size


def check_file_system(patient: Patient) -> Iterator[Verdict]:
    machine, existing = patient.machine, patient.existing()
    found = machine.file_system(existing)
    if found is None:
        yield Verdict("file system", OK, "unknown: this system does not tell")
        return
    text = f"{found.kind} at {found.mount_point}"
    if found.kind in NETWORK_FILE_SYSTEMS:
        advice = "Use a local disk: locks, syncs and renames over a network may not be what they promise."
        yield Verdict("file system", WARNING, f"{text} is a network file system", advice)
    elif found.kind in MEMORY_FILE_SYSTEMS:
        yield Verdict(
            "file system", WARNING, f"{text} is memory", "Use a disk, unless the data may go with the machine."
        )
    else:
        yield Verdict("file system", OK, text)
    yield from _reads(patient)
    yield from _write_cache(machine.write_caches(found.device))


def _reads(patient: Patient) -> Iterator[Verdict]:
    """Tried on a file that is there: nothing is written to find it out."""
    for path in (f"{patient.data_dir}/{meta_properties.FILE}", *_any_log(patient)):
        if not patient.disk.exists(path):
            continue
        if patient.machine.reads_without_waiting(path):
            yield Verdict("reads", OK, "from memory without a thread (RWF_NOWAIT)")
        else:
            advice = "Nothing to mend; on ext4 or XFS, consuming costs less."
            yield Verdict("reads", WARNING, "by threads only: this file system has no RWF_NOWAIT", advice)
        return
    yield Verdict("reads", OK, "unknown before the first start whether RWF_NOWAIT works")


def _any_log(patient: Patient) -> Iterator[str]:
    for path in patient.partitions().values():
        yield from (f"{path}/{name}" for name in patient.disk.listdir(path) if name.endswith(file_names.LOG))


def _write_cache(caches: dict[str, str]) -> Iterator[Verdict]:
    if not caches:
        yield Verdict("write cache", OK, "unknown: the system does not tell of this disk")
    for disk, mode in sorted(caches.items()):
        if mode == "write back":
            found = f"{disk} writes back: what is not synced is lost in a power failure, and syncs wait for the disk"
        else:
            found = f"{disk} is {mode}"
        yield Verdict("write cache", OK, found)
