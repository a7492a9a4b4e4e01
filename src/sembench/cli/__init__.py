"""The ``sembench`` command, one file per subcommand."""
