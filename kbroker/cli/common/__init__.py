"""Shared by the commands: Kafka clients, options, parsing, output, errors, help and shell completion."""
