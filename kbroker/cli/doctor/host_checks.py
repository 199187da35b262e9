"""Checks of the clock, limits, memory and programs of this machine."""

from collections.abc import Iterator

from kbroker.cli.common.formatting import count_text, format_size
from kbroker.cli.doctor.check import OK, PROBLEM, WARNING, CheckContext, CheckResult
from kbroker.cli.doctor.host import Host

CLOCK_SLACK_MS = 60_000
# Open files of a partition (its active segment, segments being read, and their indexes), and all others.
FILES_PER_PARTITION, OTHER_FILES = 4, 1000
LOW_MEMORY_BYTES = 256 << 20
HIGH_SWAP_SHARE = 0.5


def check_clock(context: CheckContext) -> Iterator[CheckResult]:
    host = context.host
    now_ms = host.now_ms()
    for directory in context.partitions().values():
        for name in context.disk.listdir(directory):
            try:
                ahead_ms = context.disk.mtime_ms(f"{directory}/{name}") - now_ms
            except FileNotFoundError:
                continue
            if ahead_ms > CLOCK_SLACK_MS:
                message = f"{directory}/{name} was written {ahead_ms // 1000} s in the future"
                yield CheckResult("clock", PROBLEM, message, "Set the clock: retention and reads by time depend on it.")
                return
    is_synchronized = host.is_clock_synchronized()
    if is_synchronized is None:
        yield CheckResult("clock", OK, "synchronization is unknown on this system")
    elif is_synchronized:
        yield CheckResult("clock", OK, "synchronized")
    else:
        advice = "Run chronyd, systemd-timesyncd or another NTP client, unless the hypervisor sets the clock."
        yield CheckResult("clock", WARNING, "not synchronized according to the kernel", advice)


def check_open_files(context: CheckContext) -> Iterator[CheckResult]:
    limit, partitions = context.host.max_open_files(), len(context.partitions())
    needed = partitions * FILES_PER_PARTITION + OTHER_FILES
    limit_text = "unlimited" if limit < 0 else f"at most {limit}"
    message = f"{limit_text}, for {count_text(partitions, 'partition')} and the connections"
    if 0 <= limit < needed:
        advice = f"Raise the hard limit to {needed} or more (ulimit -Hn, LimitNOFILE=)."
        yield CheckResult("open files", WARNING, message, advice)
    else:
        yield CheckResult("open files", OK, message)


def check_memory(context: CheckContext) -> Iterator[CheckResult]:
    memory = context.host.memory()
    if not memory:
        yield CheckResult("memory", OK, "unknown on this system")
        return
    available = min(memory.get("MemAvailable", 0), memory.get("limit", 1 << 62))
    message = f"{format_size(available)} available"
    if "limit" in memory:
        message += f", container limit {format_size(memory['limit'])}"
    swap = memory.get("SwapTotal", 0)
    used_swap = swap - memory.get("SwapFree", 0)
    if available < LOW_MEMORY_BYTES:
        yield CheckResult("memory", WARNING, message, "Add memory: consumers read from the page cache.")
    elif swap and used_swap > HIGH_SWAP_SHARE * swap:
        message += f"; {format_size(used_swap)} of {format_size(swap)} swap used"
        advice = "Find out what uses the memory: a broker in swap responds late."
        yield CheckResult("memory", WARNING, message, advice)
    else:
        yield CheckResult("memory", OK, message)


def check_programs(context: CheckContext, python_version: tuple[int, ...]) -> Iterator[CheckResult]:
    host = context.host
    version = ".".join(map(str, python_version[:3]))
    if host.has_module("uvloop"):
        yield CheckResult("programs", OK, f"Python {version} with uvloop")
    else:
        yield CheckResult("programs", WARNING, f"Python {version} without uvloop", "pip install uvloop: it is faster.")
    yield from _check_spark(host)


def _check_spark(host: Host) -> Iterator[CheckResult]:
    """Check for Java if pyspark is installed: nothing else needs it."""
    if not host.has_module("pyspark"):
        return
    java = host.find_program("java")
    if java is None:
        advice = "Install a Java runtime of version 17 or newer."
        yield CheckResult("Spark", WARNING, "pyspark is installed, but java is not", advice)
    else:
        yield CheckResult("Spark", OK, f"pyspark, and java at {java}")
