"""Runs the load generator (client.c), which is compiled when it has changed."""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from scripts.benchmark.peers import HERE, ROOT

SOURCE = HERE / "capacity" / "client.c"
CACHE = ROOT / ".cache" / "capacity"
# A client that is still running this long after its end is stuck. It waits for outstanding responses for up to 30 s.
STUCK_S = 90


@dataclass(frozen=True)
class Counter:
    """An int32 of a request that grows by `step` each time that the request is sent.

    `masks`: if a CRC-32C covers the counter, the bits of the CRC that each bit of the counter flips.
    """

    at: int
    step: int
    crc_at: int = -1
    masks: tuple[int, ...] = ()

    def arguments(self) -> list[str]:
        crc = [str(self.crc_at), *(f"{mask:x}" for mask in self.masks)] if self.masks else []
        return [str(self.at), str(self.step), *crc]


def crc_masks(size: int, counter_at: int) -> tuple[int, ...]:
    """Return the masks of a big-endian int32 at a position of `size` bytes that a CRC-32C covers.

    CRC(a ^ b) is CRC(a) ^ CRC(b) ^ CRC(zeros), so that the effect of a bit does not depend on the other bits.
    """
    base = crc32c(bytes(size))
    masks = []
    for bit in range(32):
        changed = bytearray(size)
        changed[counter_at : counter_at + 4] = (1 << bit).to_bytes(4, "big")
        masks.append(crc32c(bytes(changed)) ^ base)
    return tuple(masks)


@dataclass(frozen=True)
class Load:
    """What a client sends: for each connection the frames that it sends in turn.

    `error_at`: the position of the error code in a response, after the size field; -1 if it is not checked.
    `response_bytes`: a smaller response is an error.
    """

    frames: Sequence[Sequence[bytes]]
    in_flight: int
    error_at: int = -1
    response_bytes: int = 0
    counter: Counter | None = None


@dataclass(frozen=True)
class Measured:
    """What the client measured."""

    responses: int
    seconds: float
    bytes_sent: float
    bytes_received: float
    p50_us: float
    p99_us: float
    client_us: float


def client_program() -> Path:
    """Return the compiled client. The compiler is cc, or $CC."""
    program = CACHE / f"client-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            compiled = Path(directory) / "client"
            try:
                subprocess.run(["cc", "-O2", "-o", str(compiled), str(SOURCE)], check=True)
            except FileNotFoundError:
                raise SystemExit("needs a C compiler (on Debian or Ubuntu: apt-get install gcc libc6-dev)") from None
            compiled.rename(program)
    return program


class Client:
    """A running client. Its connections are open, and each has received a response."""

    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self._process = process
        self._name = name

    def run(self) -> Measured:
        """Send until the time is over, and return the measurements. Raises SystemExit for an error in a response."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name}: {self.failure()}")
        responses, *others = line.split()
        return Measured(int(responses), *map(float, others))

    def failure(self) -> str:
        return self._process.communicate(timeout=STUCK_S)[1].strip() or f"exit status {self._process.returncode}"


@contextmanager
def connected(port: int, load: Load, seconds: float, *, responses: int = 0, name: str = "client") -> Iterator[Client]:
    """Start a client, which stops after `seconds` or, if `responses` is not 0, after that number of responses.

    Its connections are closed at the end of the context.
    """
    connections = len(load.frames)
    assert len({len(frames) for frames in load.frames}) == 1
    with tempfile.NamedTemporaryFile(prefix="kbroker-bench-") as file:
        # A system call sends each frame once. Copies of a frame whose counter advances would repeat its values.
        copies = 1 if load.counter else -(-load.in_flight // len(load.frames[0]))
        for frames in load.frames:
            file.writelines([*frames] * copies)
        file.flush()
        numbers = (port, file.name, connections, load.in_flight, seconds, responses, load.error_at)
        command = [str(client_program()), *map(str, numbers), *(load.counter.arguments() if load.counter else ())]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        try:
            assert process.stdout is not None
            client = Client(process, name)
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"{name}: {client.failure()}")
            yield client
        finally:
            if process.poll() is None:
                try:
                    process.communicate(timeout=STUCK_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
