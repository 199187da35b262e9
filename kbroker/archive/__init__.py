"""Archives: the history of topics as Apache Iceberg tables, one for each topic. Needs the extra `archive`, no JVM.

An archive is a namespace of a catalogue. A table holds the records of one topic; its properties hold what a table has
no column for: which offsets it covers, what was lost, the topic's configs, the offsets of its groups.
"""
