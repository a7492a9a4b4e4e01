"""Events about donors: published by workers, read by directories."""
