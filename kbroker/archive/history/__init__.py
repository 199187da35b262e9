"""The process that reads the history of topics for a broker: it rebuilds record batches from the tables of an archive.

    server.py         the loop: calls from standard input, responses to standard output
    frames.py         frames: a JSON header and perhaps a body
    lanes.py          threads: a slow file delays only its partition
    topic_history.py  a table with its newest state: executes the calls
    layout.py         which files have which offsets (pure)
    file_reader.py    reads files in blocks of some MiB
    block_cache.py    keeps blocks, up to a limit of memory
    blocks.py         a block: rows as Arrow arrays, prepared for record batches (pure)
    batches.py        record batches from the rows of a block (pure)
    varints.py        varints of whole arrays (pure)

Files whose row groups have ascending offsets are read block by block, so memory does not depend on their size.
"""
