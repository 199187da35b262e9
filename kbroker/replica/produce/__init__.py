"""The produce path: validation of batches and records, and appends of transaction markers."""
