"""Record batches (format v2) and what is inside: headers, records, codecs, control records."""
