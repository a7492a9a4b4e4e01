"""K/V the engine holds: pages, exact prefixes, chains and donors."""
