"""The `semblend` command: one file a command."""
