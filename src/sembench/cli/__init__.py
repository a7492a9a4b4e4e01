"""The ``sembench`` command: one file a command."""
