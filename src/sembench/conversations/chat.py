"""The chat: ten turns of questions about documents, with typical user and client edits.

A second document is attached, a document in an earlier message is corrected, midnight
changes the date in the system prompt, and documents return that other conversations have
read. Every other conversation uses a thinking model, whose thinking is not sent back.
"""

from __future__ import annotations

from random import Random

from sembench.conversations import wording
from sembench.conversations.library import Library, Passage, SyntheticLibrary
from sembench.conversations.messages import Answer, ChatMessage, TurnKind
from sembench.conversations.story import Branch, Limits, Numbering, Turns

SHELF = 6
"""Documents that the conversations of one seed share."""
PARAGRAPHS = 5
_SECOND_DOCUMENT = 3
_EDIT = 5
_NEW_DATE = 7
_AGAIN = 8


class ChatStory:
    """Conversation number `index` of a seed."""

    def __init__(
        self, *, seed: int, index: int, limits: Limits, library: Library | None = None
    ) -> None:
        self.name = f"chat-{seed}-{index}"
        self._random = Random(f"sembench-chat/{seed}/{index}")
        self._limits = limits
        self._library = library or SyntheticLibrary(seed=seed, paragraphs=PARAGRAPHS)
        self._index = index

    def play(self) -> Turns:
        """Yield the requests in the order they are sent."""
        first, second, third = (
            self._library.passage(number) for number in self._random.sample(range(SHELF), 3)
        )
        chat = Branch(
            conversation=self.name,
            numbering=Numbering(),
            system=wording.CHAT_SYSTEM.format(date=wording.day(self._index)),
        )
        attached = [first]
        for turn in range(self._limits.turns):
            kind, text = TurnKind.FOLLOW_UP, ""
            if turn == 0:
                kind, text = TurnKind.OPENING, _attached(first)
            elif turn == _SECOND_DOCUMENT:
                attached.append(second)
                text = _attached(second)
            elif turn == _EDIT:
                kind = TurnKind.EDIT
                chat.messages[0] = _corrected(chat.messages[0])
            elif turn == _NEW_DATE:
                kind = TurnKind.NEW_DATE
                chat.system = wording.CHAT_SYSTEM.format(date=wording.day(self._index + 1))
            elif turn == _AGAIN:
                kind, text = TurnKind.RETRIEVAL, f"{_attached(third)}{_attached(first)}"
                attached.append(third)
            yield from self._question(chat, kind, attached[-1], text)

    def _question(self, chat: Branch, kind: TurnKind, passage: Passage, before: str) -> Turns:
        question = self._random.choice(passage.questions)
        chat.user(f"{before}{question.text}")
        answer = Answer(
            text=wording.answer_sentence(question.answer, self._random),
            thinking=self._random.choice(wording.THOUGHTS) if self._index % 2 else "",
        )
        yield from chat.ask(kind, answer, question=question.text, expected=[question.answer])


def _attached(passage: Passage) -> str:
    return f"Document {passage.name}:\n{passage.text}\n\n"


def _corrected(message: ChatMessage) -> ChatMessage:
    """The message with a correction inserted after its first line."""
    head, _, rest = (message.content or "").partition("\n")
    note = "(Corrected copy; the earlier upload was missing this line.)"
    return ChatMessage(role=message.role, content=f"{head}\n{note}\n{rest}")
