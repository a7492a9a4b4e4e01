"""Which blocks an engine's own cache holds, followed from the engine's K/V events."""
