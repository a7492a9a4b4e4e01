"""The embedded engine as other engines' adapters are to theirs: `fleet`, its part in a fleet."""
