"""A replica's own copy of who holds which donor, fed by events and queried in-process."""
