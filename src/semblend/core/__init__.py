"""Values and rules that all other packages share. Imports only numpy and pydantic."""
