"""Rule-generated conversations and agent runs: what chat clients and agents send, by turn.

A story is a generator of turns. Send each answer back to it, so that a live run continues
with what the model really said; ``None`` continues with the scripted answer:

    story = load_story("agent", seed=0, index=0)
    turns = story.play()
    turn = next(turns)
    turn = turns.send(answer)   # or turns.send(None)
"""

from __future__ import annotations

from sembench.conversations.catalogue import STORIES, load_story
from sembench.conversations.library import Library, Passage, SyntheticLibrary
from sembench.conversations.messages import Answer, ChatMessage, ToolCall, Turn, TurnKind
from sembench.conversations.story import Limits, Story, Turns, scripted_turns

__all__ = [
    "STORIES",
    "Answer",
    "ChatMessage",
    "Library",
    "Limits",
    "Passage",
    "Story",
    "SyntheticLibrary",
    "ToolCall",
    "Turn",
    "TurnKind",
    "Turns",
    "load_story",
    "scripted_turns",
]
