"""Chats over a document and agents that compact their history, turn by turn, on real engines."""
