"""Decodes many JSON documents at once with Arrow's parser, some ten times as fast as one by one.

It is only used for types of which both accept the same documents. If a document is not accepted, or in doubt, the
caller decodes one by one, which finds the reasons.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

# Each document becomes a line {"v":DOCUMENT}. No text can hide the end of its line: what is open there is an error, and
# what was closed before makes one more line.
_PREFIX, _SUFFIX, _SEPARATOR = pa.scalar(b'{"v":'), pa.scalar(b"}\n"), pa.scalar(b"")
_NOT_JSON = "NaN|Inf"  # numbers that only Arrow accepts


def decode_lines(documents: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return documents as values of a type; null is null. None if a document may be invalid."""
    try:
        text = documents.drop_null().cast(pa.string())  # checks that it is UTF-8
        if pc.any(pc.match_substring_regex(text, _NOT_JSON)).as_py():
            return None
        lines = pc.binary_join_element_wise(_PREFIX, text.cast(pa.binary()), _SUFFIX, _SEPARATOR)
        data = lines.buffers()[2]
        values = pj.read_json(
            pa.BufferReader(data),
            pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            pj.ParseOptions(pa.schema([("v", kind)]), newlines_in_values=True, unexpected_field_behavior="error"),
        ).column("v")
    except (pa.ArrowException, UnicodeError):
        return None
    if len(values) != len(text):
        return None
    values = pa.concat_arrays(values.chunks)
    if not documents.null_count:
        return values
    is_valid = documents.is_valid()
    positions = pc.subtract(pc.cumulative_sum(is_valid.cast(pa.int64())), 1)
    return values.take(pc.if_else(is_valid, positions, pa.scalar(None, pa.int64())))
