"""More checks of `kbroker doctor`: the last stop, the clock, limits, programs."""

from collections.abc import Iterator

from kbroker.cli.common.formatting import count_text, format_size
from kbroker.cli.doctor.checks import (
    CLOCK_SLACK_MS,
    FILES_PER_PARTITION,
    LITTLE_MEMORY,
    MUCH_SWAPPED,
    OK,
    OTHER_FILES,
    PROBLEM,
    WARNING,
    Check,
    Patient,
    Verdict,
    check_advertised,
    check_configuration,
    check_data_directory,
    check_disk_space,
    check_file_system,
    check_listener,
)
from kbroker.cli.doctor.host import Machine
from kbroker.storage import checkpoint_files, file_names


def check_last_stop(patient: Patient) -> Iterator[Verdict]:
    disk, path = patient.disk, patient.data_dir
    partitions = patient.partitions()
    if patient.is_used:
        yield Verdict("last stop", OK, "a broker runs on the data directory")
        return
    if not partitions or disk.exists(f"{path}/{file_names.CLEAN_SHUTDOWN}"):
        yield Verdict("last stop", OK, "clean" if partitions else "never started here, or without topics")
        return
    try:
        points = checkpoint_files.read_offsets(disk, path, file_names.RECOVERY_POINTS)
    except (ValueError, IndexError) as error:
        points = {}
        advice = "Nothing to mend: the next start reads the logs from their beginning."
        yield Verdict("last stop", WARNING, f"{file_names.RECOVERY_POINTS} is damaged: {error}", advice)
    unread = [_unread(patient, directory, points.get(tp, 0)) for tp, directory in partitions.items()]
    where = count_text(sum(map(bool, unread)), "partition")
    found = f"not clean: the next start reads up to {format_size(sum(unread))} in {where}"
    yield Verdict("last stop", WARNING, found, f"kbroker log verify {path} shows first whether anything is amiss.")


def _unread(patient: Patient, directory: str, point: int) -> int:
    """Bytes of the segments that reach beyond the recovery point."""
    files = [(file_names.parse_segment_file(name), name) for name in patient.disk.listdir(directory)]
    logs = sorted((parsed[0], name) for parsed, name in files if parsed is not None and parsed[1] == file_names.LOG)
    ends = [base for base, _ in logs[1:]]
    return sum(
        patient.disk.size(f"{directory}/{name}")
        for (_, name), end in zip(logs, [*ends, None], strict=True)
        if end is None or end > point
    )


def check_clock(patient: Patient) -> Iterator[Verdict]:
    machine = patient.machine
    now = machine.now_ms()
    for path in patient.partitions().values():
        for name in patient.disk.listdir(path):
            try:
                ahead = patient.disk.mtime_ms(f"{path}/{name}") - now
            except FileNotFoundError:
                continue
            if ahead > CLOCK_SLACK_MS:
                found = f"{path}/{name} was written {ahead // 1000} s in the future"
                advice = "Set the clock: retention and time-based reads go by it."
                yield Verdict("clock", PROBLEM, found, advice)
                return
    synchronised = machine.clock_is_synchronised()
    if synchronised is None:
        yield Verdict("clock", OK, "unknown whether it is synchronised: this system does not tell")
    elif synchronised:
        yield Verdict("clock", OK, "synchronised")
    else:
        advice = "Run chronyd, systemd-timesyncd or another NTP client, unless the host of this machine does."
        yield Verdict("clock", WARNING, "not synchronised, as far as the kernel knows", advice)


def check_open_files(patient: Patient) -> Iterator[Verdict]:
    limit, partitions = patient.machine.file_limit(), len(patient.partitions())
    wanted = partitions * FILES_PER_PARTITION + OTHER_FILES
    found = (
        f"at most {'unlimited' if limit < 0 else limit}, for {count_text(partitions, 'partition')} and the connections"
    )
    if 0 <= limit < wanted:
        advice = f"Raise the hard limit to {wanted} or more (ulimit -Hn, LimitNOFILE=)."
        yield Verdict("open files", WARNING, found, advice)
    else:
        yield Verdict("open files", OK, found)


def check_memory(patient: Patient) -> Iterator[Verdict]:
    memory = patient.machine.memory()
    if not memory:
        yield Verdict("memory", OK, "unknown: this system does not tell")
        return
    available = min(memory.get("MemAvailable", 0), memory.get("limit", 1 << 62))
    found = f"{format_size(available)} available"
    if "limit" in memory:
        found += f", the container's limit is {format_size(memory['limit'])}"
    swap = memory.get("SwapTotal", 0)
    swapped = swap - memory.get("SwapFree", 0)
    if available < LITTLE_MEMORY:
        advice = "Give it more: what consumers read comes from the page cache."
        yield Verdict("memory", WARNING, found, advice)
    elif swap and swapped > MUCH_SWAPPED * swap:
        advice = "Find what takes the memory: a broker that is swapped out answers late."
        yield Verdict(
            "memory", WARNING, f"{found}; {format_size(swapped)} of {format_size(swap)} swap are used", advice
        )
    else:
        yield Verdict("memory", OK, found)


def check_programs(patient: Patient, python: tuple[int, ...]) -> Iterator[Verdict]:
    machine = patient.machine
    version = ".".join(map(str, python[:3]))
    if machine.has_module("uvloop"):
        yield Verdict("programs", OK, f"Python {version} with uvloop")
    else:
        yield Verdict("programs", WARNING, f"Python {version} without uvloop", "pip install uvloop: it is faster.")
    yield from _spark(machine)


def _spark(machine: Machine) -> Iterator[Verdict]:
    """Only where the extra is installed: nothing else needs Java."""
    if not machine.has_module("pyspark"):
        return
    java = machine.program("java")
    if java is None:
        advice = "Install a Java runtime of version 17 or newer."
        yield Verdict("Spark", WARNING, "pyspark is installed, but there is no java", advice)
    else:
        yield Verdict("Spark", OK, f"pyspark, and java at {java}")


# In the order of a start. Those after the first need a configuration with one directory and one listener.
CHECKS: tuple[Check, ...] = (
    check_configuration,
    check_listener,
    check_advertised,
    check_data_directory,
    check_disk_space,
    check_file_system,
    check_last_stop,
    check_clock,
    check_open_files,
    check_memory,
)
