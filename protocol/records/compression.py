"""The codecs of record batches, compatible with Kafka's Java client.

These are gzip, zstd, lz4 in frames of independent blocks (the Java reader rejects linked ones), and snappy. Snappy is
written in the framing of xerial's snappy-java, and also read without it, since librdkafka sends it without.

Decompression is bounded: it never allocates more than a small multiple of its input or of the output so far, and raises
TooLargeError at `max_size`.
"""

from collections.abc import Iterator
from functools import cache, lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from protocol.errors import MalformedError

if TYPE_CHECKING:
    from mmap import mmap
    from types import ModuleType

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

# The names of the codecs in compression.type, by number.
CODEC_NAMES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
# Defaults of compression.gzip.level, compression.lz4.level and compression.zstd.level; snappy has none.
DEFAULT_LEVELS = (0, -1, 0, 9, 3)

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32 * 1024
_LENGTH = Struct(">i")
_STREAMS = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}

# A copy element of 3 bytes decompresses to at most 64 bytes.
_SNAPPY_MAX_RATIO = 22
_GROWTH = 4
_FIRST_OUTPUT = 64 * 1024
_MAX_UNMAPPED = 1 << 20
_LZ4_PIECE = 1 << 20
_LZ4_FASTEST = 0
_LZ4_HIGHEST = 12
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# FLG of a frame of version 1 with independent blocks and no checksum, content size or dictionary.
_LZ4_PLAIN = 0x60
# Magic, FLG, BD, checksum of the two; then the blocks, whose sizes have a bit for those that are not compressed.
_LZ4_HEADER_SIZE = 7
_LZ4_SIZE = Struct("<I")
_LZ4_UNCOMPRESSED = 0x80000000
# A block decompresses to at most 255 times its size.
_LZ4_MAX_RATIO = 255


class TooLargeError(MalformedError):
    """The decompressed data is larger than the caller allows."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`. `level` is a value of Kafka's compression.<codec>.level; None: the default."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        level = 6 if level is None or level == -1 else level
        return bytes(_module("gzip").compress(data, level))
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        return bytes(_module("zstd").compress(data, DEFAULT_LEVELS[ZSTD] if level is None else level))
    raise ValueError(f"no codec {codec}")


def decompress(codec: int, data: Buffer, max_size: int) -> Buffer:
    """Decompress to at most `max_size` bytes.

    Raises TooLargeError if there are more, MalformedError for an unknown codec or invalid data.
    """
    if codec == NONE:
        if len(data) > max_size:
            raise TooLargeError(f"{len(data)} bytes; at most {max_size} are allowed")
        return data
    if codec == SNAPPY:
        return _decompress_snappy(data, max_size)
    if codec == LZ4 and (plain := _decompress_plain_lz4(data, max_size)) is not None:
        return plain
    if codec in _STREAMS:
        return _decompress_stream(_STREAMS[codec], data, max_size)
    raise MalformedError(f"unknown compression codec {codec}")


def decompress_mapped(codec: int, data: Buffer, max_size: int) -> memoryview:
    """Like `decompress`, for a thread: in one call, without the GIL, into an anonymous memory map.

    Its pages are committed on first write, and returned to the system when the result is released.
    """
    from mmap import mmap

    memory = mmap(-1, max_size)
    room = memoryview(memory)
    try:
        return room[: _decompress_into(codec, data, room)]
    except BaseException:
        # The caller may keep the error, which refers to this frame, but the memory must be released.
        room.release()
        memory.close()
        raise


def decompress_searchable(codec: int, data: Buffer, max_size: int) -> "mmap | bytearray":
    """Like `decompress`, but returns what can be searched and written to, for a codec other than NONE.

    If it may be large it is a memory map, since each thread that has freed a large buffer would keep the memory.
    """
    if max_size <= _MAX_UNMAPPED:
        decompressed = decompress(codec, data, max_size)
        return decompressed if isinstance(decompressed, bytearray) else bytearray(decompressed)
    view = decompress_mapped(codec, data, max_size)
    memory: mmap = view.obj  # type: ignore[assignment]
    size = len(view)
    view.release()
    if not size:
        return bytearray()
    memory.resize(size)
    return memory


def _decompress_into(codec: int, data: Buffer, room: memoryview) -> int:
    """Decompress into `room`; returns the number of bytes written."""
    if codec == SNAPPY:
        return _decompress_snappy_into(data, room)
    if codec not in _STREAMS:
        raise MalformedError(f"unknown compression codec {codec}")
    name = _STREAMS[codec]
    module = _module(name)
    try:
        written: int = module.decompress_into(data, room)
    except Exception as error:
        if str(error) != _message_when_full(name):
            raise MalformedError(f"not valid {name}: {error}") from None
        raise TooLargeError(f"more than {len(room)} bytes when decompressed") from None
    return written


def _module(name: str) -> "ModuleType":
    """Return the module of a codec. Raises OSError, ImportError if there is no file descriptor to load it with.

    Such an error does not mean that the data is invalid.
    """
    # Loaded at first use, since most brokers never decompress a batch.
    import cramjam

    module: ModuleType = getattr(cramjam, name)
    return module


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    # The default level of Kafka is its fast compressor, the others are its high compressor, which ends at 12 here.
    fast = level is None or level == DEFAULT_LEVELS[LZ4]
    level = _LZ4_FASTEST if level is None or fast else min(level, _LZ4_HIGHEST)
    compressor = _module("lz4").Compressor(level=level, content_checksum=False, block_linked=False)
    view = memoryview(data)
    for pos in range(0, len(view), _LZ4_PIECE):
        # Unlike the others, it accepts only bytes. A copy of all of them would stay in the memory of the thread.
        compressor.compress(bytes(view[pos : pos + _LZ4_PIECE]))
    return bytes(compressor.finish())


def _compress_xerial(data: Buffer) -> bytes:
    snappy = _module("snappy")
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for pos in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[pos : pos + _XERIAL_BLOCK]))
        parts.append(_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


@cache
def _message_when_full(name: str) -> str:
    """Return the error message of a codec whose output buffer is full: only this differs from invalid input."""
    module = _module(name)
    try:
        module.decompress_into(module.compress(b"1"), bytearray())
    except Exception as error:
        return str(error)
    raise RuntimeError(f"{name} writes beyond its output")


def _decompress_stream(name: str, data: Buffer, max_size: int) -> bytearray:
    """Decompress into a buffer. While it is too small, repeat with a larger one, up to `max_size`."""
    module = _module(name)
    size = min(max_size, max(_FIRST_OUTPUT, _GROWTH * len(data)))
    while True:
        out = bytearray(size)
        try:
            written: int = module.decompress_into(data, out)
        except Exception as error:
            if str(error) != _message_when_full(name):
                raise MalformedError(f"not valid {name}: {error}") from None
            if size == max_size:
                raise TooLargeError(f"more than {max_size} bytes when decompressed") from None
            size = min(max_size, size * _GROWTH)
            # Not two buffers at a time.
            del out
            continue
        del out[written:]
        return out


def _decompress_plain_lz4(data: Buffer, max_size: int) -> bytearray | None:
    """Decompress a frame as producers write it, block by block, in a fifth of the time of a stream.

    Returns None for other frames, and for those that are invalid or too large: the stream knows how to report them.
    """
    view = memoryview(data)
    block_bytes = _plain_lz4_block_bytes(bytes(view[:_LZ4_HEADER_SIZE]))
    if block_bytes is None:
        return None
    decompress_block_into = _module("lz4").decompress_block_into
    out = bytearray()
    pos, end = _LZ4_HEADER_SIZE, len(view)
    while end - pos >= 4:
        (size,) = _LZ4_SIZE.unpack_from(view, pos)
        pos += 4
        if not size:
            return out if pos == end else None
        is_compressed = not size & _LZ4_UNCOMPRESSED
        size &= ~_LZ4_UNCOMPRESSED
        if size > end - pos:
            return None
        block = view[pos : pos + size]
        pos += size
        room_bytes = min(block_bytes, _LZ4_MAX_RATIO * size, max_size - len(out))
        if is_compressed:
            room = bytearray(room_bytes)
            try:
                del room[decompress_block_into(block, room, room_bytes) :]
            except Exception:
                return None
            out = out + room if out else room
        elif size > room_bytes:
            return None
        else:
            out += block
    return None


@lru_cache(maxsize=16)
def _plain_lz4_block_bytes(header: bytes) -> int | None:
    """Return the maximum size of a block, from the header of a plain frame; None if it is not valid, or not plain."""
    if len(header) != _LZ4_HEADER_SIZE or header[:4] != _LZ4_MAGIC or header[4] != _LZ4_PLAIN:
        return None
    decompress_frame = _module("lz4").decompress
    try:
        # Checks the header's checksum: the frame has no blocks.
        decompress_frame(header + bytes(4))
    except Exception:
        return None
    return 1 << (8 + 2 * (header[5] >> 4))


def _decompress_snappy(data: Buffer, max_size: int) -> bytearray:
    out = bytearray()
    snappy = _module("snappy")
    for block, size in _snappy_blocks(data):
        if size > max_size - len(out):
            raise TooLargeError(f"more than {max_size} bytes when decompressed")
        try:
            out += snappy.decompress_raw(block)
        except Exception as error:
            raise MalformedError(f"not valid snappy: {error}") from None
    return out


def _decompress_snappy_into(data: Buffer, room: memoryview) -> int:
    """Decompress into `room`; returns the number of bytes written."""
    pos = 0
    blocks = list(_snappy_blocks(data))
    # Each block decompresses to exactly the size that it claims.
    if sum(size for _, size in blocks) > len(room):
        raise TooLargeError(f"more than {len(room)} bytes when decompressed")
    snappy = _module("snappy")
    for block, size in blocks:
        try:
            with room[pos : pos + size] as part:
                pos += snappy.decompress_raw_into(block, part)
        except Exception as error:
            raise MalformedError(f"not valid snappy: {error}") from None
    return pos


def _snappy_blocks(data: Buffer) -> Iterator[tuple[memoryview, int]]:
    """Iterate over the raw blocks, each with its decompressed size, which is stored at its start."""
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield view, _snappy_size(view)
        return
    pos, end = len(_XERIAL_HEADER), len(view)
    while pos < end:
        if end - pos < 4:
            raise MalformedError("snappy block's length is cut off")
        size: int = _LENGTH.unpack_from(view, pos)[0]
        pos += 4
        if not 0 <= size <= end - pos:
            raise MalformedError(f"snappy block of {size} bytes in {end - pos} bytes")
        block = view[pos : pos + size]
        yield block, _snappy_size(block)
        pos += size


def _snappy_size(block: memoryview) -> int:
    snappy = _module("snappy")
    try:
        size: int = snappy.decompress_raw_len(block)
    except Exception as error:
        raise MalformedError(f"not valid snappy: {error}") from None
    if size > _SNAPPY_MAX_RATIO * len(block):
        raise MalformedError(f"snappy block of {len(block)} bytes claims to hold {size} bytes")
    return size
