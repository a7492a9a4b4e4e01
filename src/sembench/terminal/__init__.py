"""What SemBench's commands share: options, and runs over live engines."""
