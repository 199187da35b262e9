"""Record batches of format v2: headers, records, compression codecs, control records."""
