"""Decoded columns: the keys and values of a topic as typed columns, beside their bytes.

`settings` says how the records of a topic are decoded, `codecs` compiles a schema into a type and a function, `decoder`
decodes batches in any process, and `topic_decoding` keeps the table's columns in step with the schemas of the records.
"""
