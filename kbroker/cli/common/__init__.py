"""What the commands share: connections, output, errors, values, completion."""
