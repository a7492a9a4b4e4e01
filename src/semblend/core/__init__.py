"""Values and rules that every other part shares. Imports numpy and pydantic, nothing above it."""
