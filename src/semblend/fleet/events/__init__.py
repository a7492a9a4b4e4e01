"""Events about donors: what workers say and directories hear."""
