"""Prompt layouts. Instructions differ in length and wording, as they do between real clients."""

from __future__ import annotations

from sembench.profiles.base import SourceRecord

INSTRUCTION = "Read the document below and answer the question that follows it."
"""The start of the base prompt."""

INSTRUCTION_VARIANTS = (
    "You support a team of analysts. Use nothing but the document given here, keep the answer "
    "short, and say so plainly if the document does not hold it.",
    "Be brief. Base every word of your reply on the text that comes next.",
    "As a careful assistant for our case workers, study what has been filed below; then give "
    "one precise reply, without opinions and without repeating the file.",
)
"""No variant shares a run of words with the base instruction or another variant."""

OTHER_TASKS = (
    "Summarise this text in three sentences for a reader in a hurry.",
    "List the people, places and organisations that are mentioned.",
    "Write five key points, most important first, one line each.",
    "Say in one paragraph who would want to read this and why.",
)
"""Tasks that fit any document, for donors whose task differs from the recipient's."""

DEFAULT_QUESTION = "What are the main points of this document?"
"""Asked if a record has no question."""

PREAMBLE = "Ticket {number}, forwarded by the front desk."
"""What a gateway puts in front of a prompt it forwards."""


def question_of(record: SourceRecord) -> str:
    """The record's question, or the default one."""
    return record.input.strip() or DEFAULT_QUESTION


def base_prompt(context: str, question: str, *, instruction: str = INSTRUCTION) -> str:
    """Instruction, document, question: the layout most retrieval clients use."""
    return f"{instruction}\n\nDocument:\n{context}\n\nQuestion: {question}\nAnswer:"


def task_first_prompt(context: str, task: str) -> str:
    """The task before the document."""
    return f"Task: {task}\n\nDocument:\n{context}\n\nResult:"


def evidence_first_prompt(context: str, task: str) -> str:
    """The document first, then the task."""
    return f"{context}\n\n{task}\nAnswer:"


def unrelated_prompt(context: str, task: str, *, instruction: str) -> str:
    """A layout that shares no label with the base layout, as from an unrelated client."""
    return f"{instruction}\n\n<material>\n{context}\n</material>\n\n{task}\nReply >"
