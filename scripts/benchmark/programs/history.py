"""Reads a table of an archive through the history process, and prints its rate and processor time.

python -m scripts.benchmark.programs.history [RECORD_BYTES] [MEGABYTES] [MAX_BYTES]
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any

import pyarrow as pa

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.offset_ranges import OffsetRange

TIMESTAMP_US = 1_760_000_000_000_000


def main() -> None:
    defaults = ("1000", "256", str(1 << 20))
    size, megabytes, max_bytes = (int(text) for text in [*sys.argv[1:], *defaults[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as directory:
        table = create_archive(directory, {}).create_table("t")
        end = _fill(table, size, megabytes << 20)
        process = subprocess.Popen([sys.executable, "-m", "kbroker.archive.history"], stdin=-1, stdout=-1)
        _call(process, call="bounds", archive=directory, topic="t")
        for name in ("first read", "cached read"):
            started, processor_s = time.monotonic(), _processor_s(process.pid)
            received, count, offset = 0, 0, 0
            while offset < end:
                response, body = _call(
                    process, call="fetch", archive=directory, topic="t", partition=0, offset=offset, end=end,
                    max_bytes=max_bytes,
                )  # fmt: skip
                received, count, offset = received + len(body), count + 1, response["next_offset"]
            seconds, processor_s = time.monotonic() - started, _processor_s(process.pid) - processor_s
            print(
                f"{name}: {size} B, {received / 1e6:.0f} MB in {count} fetches: {received / 1e6 / seconds:.0f} MB/s, "
                f"{received / 1e6 / processor_s:.0f} MB/s of processor time, peak {_peak_mib(process.pid)} MiB"
            )
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def _fill(table: ArchiveTable, size: int, total: int) -> int:
    """Write rows whose values can be compressed to about half; return the offset after them."""
    count = total // size
    block = random.Random(1).randbytes(size // 2 + 4096)
    rows_per_batch = max(1, (16 << 20) // size)
    batches = []
    for first in range(0, count, rows_per_batch):
        rows = range(first, min(count, first + rows_per_batch))
        values = [(b"%012d" % row) * (size // 24) + block[row % 4096 :][: size - size // 24 * 12] for row in rows]
        batches.append(
            pa.record_batch(
                {
                    "partition": pa.array([0] * len(rows), pa.int32()),
                    "offset": pa.array(rows, pa.int64()),
                    "timestamp": pa.array(
                        [TIMESTAMP_US + row * 10 // 1000 * 1000 for row in rows], pa.timestamp("us", "UTC")
                    ),
                    "timestampType": pa.array([0] * len(rows), pa.int32()),
                    "key": pa.array([b"key-%d" % row for row in rows], pa.binary()),
                    "value": pa.array(values, pa.binary()),
                    "headers": pa.array(
                        [None] * len(rows), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                    ),
                }
            )
        )
    files = write_rows(table.write_target(), batches)
    table.commit("append", table.state.with_covered([(0, OffsetRange(0, count))]), add=files)
    return count


def _call(process: subprocess.Popen[bytes], **header: object) -> tuple[dict[str, Any], bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    text = json.dumps({"id": 1, **header}).encode()
    process.stdin.write(struct.pack(">I", len(text)) + text)
    process.stdin.flush()
    (length,) = struct.unpack(">I", process.stdout.read(4))
    response = json.loads(process.stdout.read(length))
    if "error" in response:
        raise SystemExit(response["error"])
    return response, process.stdout.read(response.get("body", 0))


def _processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
