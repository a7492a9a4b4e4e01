"""The red team: searches for text under which a policy answers with a donor's fact."""
