"""The agent: a tool loop whose history grows, is edited, forks, and is compacted twice.

Every request adds a tool's result. About half of the passages a search returns have been
seen before in the run; when a passage comes back, its first occurrence is cleared. Two
kinds of sub-agents take part of the context with them. A history that grows too long is
replaced by a summary the model was just asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from sembench.conversations import wording
from sembench.conversations.library import Library, Passage, Question, SyntheticLibrary
from sembench.conversations.messages import Answer, ChatMessage, ToolCall, TurnKind
from sembench.conversations.story import Branch, Limits, Numbering, Turns

SHELF = 12
"""Passages per case. Runs of one seed work on the same case, days apart."""
STEPS_AFTER_LAST_COMPACTION = 4
FORK_EVERY = 5
EDIT_EVERY = 3


class AgentStory:
    """Run number `index` of a seed."""

    def __init__(
        self, *, seed: int, index: int, limits: Limits, library: Library | None = None
    ) -> None:
        self.name = f"agent-{seed}-{index}"
        self._random = Random(f"sembench-agent/{seed}/{index}")
        self._limits = limits
        self._library = library or SyntheticLibrary(seed=seed)
        self._index = index
        self._numbering = Numbering()
        self._found: list[tuple[str, str]] = []
        self._read: list[Passage] = []
        self._forks = 0

    def play(self) -> Turns:
        """Yield the requests in the order they are sent."""
        main = Branch(
            conversation=self.name,
            numbering=self._numbering,
            system=wording.AGENT_SYSTEM.format(date=wording.day(self._index)),
            tools=wording.TOOLS,
        )
        first = self._library.passage(self._random.randrange(SHELF))
        task = self._random.choice(wording.TASKS).format(topic=first.name)
        main.user(task)
        call = self._search(first.name)
        yield from main.ask(TurnKind.OPENING, Answer(call=call))
        compactions, step, left = 0, 0, STEPS_AFTER_LAST_COMPACTION
        passages = [first]
        while True:
            edited = step % EDIT_EVERY == EDIT_EVERY - 1 and self._clear_repeated(main, passages)
            repeated = any(passage in self._read for passage in passages)
            kind = TurnKind.RETRIEVAL if repeated else TurnKind.TOOL_RESULT
            main.tool(wording.search_result(passages), call.call_id)
            yield from self._question(main, TurnKind.EDIT if edited else kind, passages)
            self._read.extend(passage for passage in passages if passage not in self._read)
            if step % FORK_EVERY == FORK_EVERY - 1:
                yield from self._fork(main, passages)
            compact = (
                main.words > self._limits.compact_words and compactions < self._limits.compactions
            )
            if compact:
                yield from self._compact(main, task)
                compactions += 1
            elif compactions == self._limits.compactions:
                left -= 1
            if not left:
                return
            passages = self._next_passages()
            call = self._search(passages[0].name)
            main.user(wording.RESUME if compact else f"Now look for {passages[0].name}.")
            after = TurnKind.COMPACTED if compact else TurnKind.FOLLOW_UP
            yield from main.ask(after, Answer(call=call))
            step += 1

    def _question(self, branch: Branch, kind: TurnKind, passages: Sequence[Passage]) -> Turns:
        question = self._random.choice([q for passage in passages for q in passage.questions])
        branch.user(question.text)
        yield from branch.ask(
            kind, self._answer(question), question=question.text, expected=[question.answer]
        )
        self._found.append((question.text, question.answer))

    def _answer(self, question: Question) -> Answer:
        return Answer(
            text=wording.answer_sentence(question.answer, self._random),
            thinking=self._random.choice(wording.THOUGHTS) if self._index % 2 else "",
        )

    def _next_passages(self) -> list[Passage]:
        """Two passages: one that this run has read about half the time, one from anywhere."""
        shelf = [self._library.passage(number) for number in range(SHELF)]
        known = [passage for passage in shelf if passage in self._read]
        first = self._random.choice(known if known and self._random.random() < 0.5 else shelf)
        second = self._random.choice([passage for passage in shelf if passage != first])
        return [first, second]

    def _search(self, query: str) -> ToolCall:
        return ToolCall(
            call_id=self._numbering.call(), name="search", arguments=json.dumps({"query": query})
        )

    def _clear_repeated(self, branch: Branch, passages: Sequence[Passage]) -> bool:
        """Clear the oldest result that holds a passage returned again now."""
        for place, message in enumerate(branch.messages):
            held = message.content or ""
            if message.role == "tool" and any(passage.text in held for passage in passages):
                branch.messages[place] = ChatMessage(
                    role="tool", content=wording.CLEARED, tool_call_id=message.tool_call_id
                )
                return True
        return False

    def _fork(self, main: Branch, passages: Sequence[Passage]) -> Turns:
        """Run a sub-agent: the first continues the whole history, the next gets separate notes."""
        self._forks += 1
        question = passages[-1].questions[-1]
        part = f"Check this for the record: {question.text}"
        delegate = ToolCall(
            call_id=self._numbering.call(), name="delegate", arguments=json.dumps({"part": part})
        )
        copies = self._forks % 2 == 1
        branch = Branch(
            conversation=self.name,
            numbering=self._numbering,
            name=f"sub-agent-{self._forks}",
            system=main.system if copies else wording.SUB_AGENT_SYSTEM,
            tools=main.tools,
            messages=list(main.messages) if copies else [],
        )
        if not copies:
            notes = wording.search_result([*self._read[-3:]])
            branch.user(f"Notes of the lead agent:\n\n{notes}")
        branch.user(part)
        said = yield from branch.ask(
            TurnKind.FORK,
            self._answer(question),
            question=question.text,
            expected=[question.answer],
        )
        branch.user("Which passage holds the proof? Answer with its name.")
        yield from branch.ask(TurnKind.FOLLOW_UP, Answer(text=f"It is {passages[-1].name}."))
        main.messages.append(Answer(call=delegate).message())
        main.tool(f"The agent reports: {said}", delegate.call_id)

    def _compact(self, main: Branch, task: str) -> Turns:
        """Ask for a summary, then continue with it and the last messages only."""
        main.user(wording.SUMMARY_REQUEST)
        names = [passage.name for passage in self._read]
        written = Answer(text=wording.summary(self._found[-8:], names))
        said = yield from main.ask(TurnKind.SUMMARY, written)
        history = main.messages[:-2]
        kept = history[-self._limits.kept_messages :]
        while kept and kept[0].role != "user" and len(kept) < len(history):
            # Some servers reject a result without its call, or an answer without its question.
            kept = history[-len(kept) - 1 :]
        head = ChatMessage(role="user", content=f"{task}\n\n{wording.SUMMARY_HEAD}\n{said}")
        reply = ChatMessage(role="assistant", content="Understood.")
        main.messages = [head, reply, *kept]
