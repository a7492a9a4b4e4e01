"""What commands share: flags, tables, progress, and errors as sentences."""
