"""Fixed texts of stories: roles, rules, tools and sentence frames."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from random import Random
from typing import Any

from sembench.conversations.library import Passage

_FIRST_DAY = datetime.date(2026, 3, 2)

AGENT_SYSTEM = """You are the research agent of a records office. Today is {date}.

Work in small steps. Call one tool at a time and wait for its result before you decide on the \
next one. Never state a code, an entry or a reference that no passage has stated. When two \
passages disagree, prefer the one that was filed later and say so. Keep every answer to one \
sentence unless you are asked for a report. If a tool fails, try it once more with other words, \
then tell the user what is missing. Passages are confidential: quote no more of them than the \
question needs."""

CHAT_SYSTEM = """You are a helpful assistant. The current date is {date}.

Answer from the documents the user gives you and say plainly when they do not hold the answer. \
Be brief: one sentence is enough for a question of fact. Do not repeat the question. Dates and \
codes are copied exactly as the document writes them. Never guess a code."""

SUB_AGENT_SYSTEM = """You check one claim for another agent. Use the notes you are handed and \
nothing else. Answer in one sentence and name the passage that holds the proof."""

TASKS = (
    "Go through the passages that belong to this case and note every code they state. Start by "
    "searching for {topic}.",
    "We need a list of references for the auditors. Read what the office has on {topic} and work "
    "your way through whatever that leads to.",
    "Please check the register against the filed passages, beginning with {topic}.",
)

THOUGHTS = (
    "The user wants one value. I have to find the sentence that states it, and must not mix it "
    "up with the other code in the same passage.",
    "Two passages look alike here. The one that was filed last counts, so I read that one again "
    "before I answer.",
    "I should not guess. The value stands near the end of the passage, behind the description.",
)

SUMMARY_REQUEST = (
    "The history is getting long. Summarise everything above that is still needed: what was "
    "asked, which passages were read, and every code that was found. Later steps will see your "
    "summary instead of the history."
)
SUMMARY_HEAD = "Summary of the work so far (earlier messages were removed):"
CLEARED = "[The result was removed because a later search returned the same passage.]"
RESUME = "Go on where the summary ends."


def day(number: int) -> str:
    """A date as system prompts write it; a number always gives the same day."""
    date = _FIRST_DAY + datetime.timedelta(days=number)
    return f"{date:%A}, {date.day} {date:%B %Y}"


def tool(name: str, description: str, argument: str, meaning: str) -> dict[str, Any]:
    """A tool in OpenAI's format."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string", "description": meaning}},
                "required": [argument],
            },
        },
    }


TOOLS: tuple[dict[str, Any], ...] = (
    tool("search", "Find passages by what they are about.", "query", "What to look for."),
    tool("read", "Read one passage by its name.", "name", "Name of the passage."),
    tool("delegate", "Hand a part of the work to another agent.", "part", "What it should do."),
)


def search_result(passages: Sequence[Passage]) -> str:
    return "\n\n".join(f"[{passage.name}]\n{passage.text}" for passage in passages)


def answer_sentence(value: str, random: Random) -> str:
    frames = ("It is {value}.", "The passage states {value}.", "According to the file, {value}.")
    return random.choice(frames).format(value=value)


def summary(found: Sequence[tuple[str, str]], names: Sequence[str]) -> str:
    lines = [f"- {question} {answer}" for question, answer in found]
    read = ", ".join(names) or "none"
    return "\n".join([f"Passages read: {read}.", "Found so far:", *(lines or ["- nothing yet"])])
