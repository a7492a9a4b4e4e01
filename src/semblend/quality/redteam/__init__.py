"""The red team: searches for text that makes a policy answer with a donor's fact."""
