"""The `semblend` command, one file per subcommand."""
