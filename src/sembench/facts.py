"""Facts with one value and several wordings, to insert into documents and ask about.

Values are made-up codes. No model knows them, so an answer that states one got it from
the prompt or from someone else's K/V.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from sembench.name_parts import NAME_ENDS, NAME_MIDDLES, NAME_STARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class FactKind:
    """Two wordings of one statement about {name} with the value {value}, and its question."""

    statement: str
    restatement: str
    question: str


KINDS: tuple[FactKind, ...] = (
    FactKind(
        statement="The access code of the {name} building is {value}.",
        restatement="Whoever wants to enter the building called {name} must first type {value}.",
        question="What is the access code of the {name} building?",
    ),
    FactKind(
        statement="Invoice reference {value} was assigned to the firm {name}.",
        restatement="For its books, {name} received the invoice reference {value} last spring.",
        question="Which invoice reference belongs to {name}?",
    ),
    FactKind(
        statement="The survey vessel {name} carries the registration {value}.",
        restatement="Registered as {value}, the ship {name} is used for surveys off the coast.",
        question="Under which registration does the survey vessel {name} sail?",
    ),
    FactKind(
        statement="In the seed register, the variety {name} is listed under {value}.",
        restatement="Growers find {name} in the register of seeds if they look up entry {value}.",
        question="Under which entry of the seed register is {name} listed?",
    ),
    FactKind(
        statement="Locker {value} holds the spare keys of the {name} depot.",
        restatement="The depot at {name} keeps its spare keys locked away, in locker {value}.",
        question="Which locker holds the spare keys of the {name} depot?",
    ),
    FactKind(
        statement="The committee filed the complaint from {name} as case {value}.",
        restatement="A complaint the committee got from {name} now bears case number {value}.",
        question="As which case was the complaint from {name} filed?",
    ),
)

_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    kind: FactKind
    name: str
    value: str

    @property
    def statement(self) -> str:
        return self.kind.statement.format(name=self.name, value=self.value)

    @property
    def restatement(self) -> str:
        return self.kind.restatement.format(name=self.name, value=self.value)

    @property
    def question(self) -> str:
        return self.kind.question.format(name=self.name)


def make_name(random: Random) -> str:
    """A made-up proper noun."""
    return random.choice(NAME_STARTS) + random.choice(NAME_MIDDLES) + random.choice(NAME_ENDS)


def make_value(random: Random) -> str:
    """A code such as ``KX-4821``."""
    letters = "".join(random.choice(_LETTERS) for _ in range(2))
    return f"{letters}-{random.randrange(1000, 10000)}"


def make_facts(random: Random, count: int) -> list[Fact]:
    """`count` facts of different kinds with different names and values."""
    kinds = random.sample(KINDS, count)
    names: list[str] = []
    values: list[str] = []
    while len(names) < count:
        name, value = make_name(random), make_value(random)
        if name not in names and value not in values:
            names.append(name)
            values.append(value)
    return [
        Fact(kind=kind, name=name, value=value)
        for kind, name, value in zip(kinds, names, values, strict=True)
    ]
