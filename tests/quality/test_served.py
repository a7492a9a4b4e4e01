"""Measuring by requests alone: what counts, what does not, and that its KL is a lower bound."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import ServerError
from semblend.quality.items import Ask, Case, Item, encode
from semblend.quality.redteam.engines import AttackedEngine
from semblend.quality.served.asking import ServedReply
from semblend.quality.served.comparing import compared, least_kl, margin
from semblend.quality.served.measuring import MeasuredServer
from semblend.quality.served.over_http import reply_of


def logs(values, top):
    """The likeliest tokens of a distribution."""
    shares = np.exp(np.asarray(values) - np.max(values))
    shares /= shares.sum()
    order = np.argsort(-shares)[:top]
    return {str(at): math.log(shares[at]) for at in order}, shares


@given(
    st.lists(st.tuples(st.floats(-6, 6), st.floats(-6, 6)), min_size=3, max_size=12),
    st.integers(1, 12),
)
def test_the_divergence_of_the_likeliest_tokens_never_exceeds_the_whole_one(pairs, top):
    cold, p = logs([mine for mine, _ in pairs], top)
    warm, q = logs([theirs for _, theirs in pairs], top)
    whole = float((p * np.log(p / q)).sum())
    assert least_kl(cold, warm) <= whole + 1e-6
    if top >= len(pairs):
        assert least_kl(cold, warm) == pytest.approx(max(0.0, whole), abs=1e-6)


def reply(*tokens, text="", policy=None, reused=0, outcome="materialised"):
    said = {} if policy is None else {"outcome": outcome, "policy": policy, "reused_tokens": reused}
    top = tuple({token: math.log(0.9), "other": math.log(0.05)} for token in tokens)
    return ServedReply(tokens=tokens, text=text or " ".join(tokens), top=top, said=said)


def test_answers_are_compared_up_to_the_first_token_that_differs():
    cold = reply("a", "b", "c")
    assert compared(cold, cold).top1 == 1.0
    assert compared(cold, cold).kl == 0.0
    late, soon = reply("a", "b", "x"), reply("x", "b", "c")
    assert compared(cold, late).top1 == pytest.approx(2 / 3)
    assert compared(cold, soon).top1 == 0.0
    assert compared(cold, soon).kl > compared(cold, late).kl > 0.5
    assert compared(cold, reply("a", "b")).top1 < 1.0, "an answer that ends early differs"
    assert margin(cold) == pytest.approx(math.log(0.9 / 0.05))


CASE = Case(
    workload="control",
    kind="negation",
    number=0,
    target=Ask(instruction="", body="", question=""),
    donors=(),
    answer="4821",
    leaked=("7",),
)
TOKENS = np.arange(100, dtype=np.int32)
ITEM = Item(case=CASE, tokens=TOKENS, donors=(TOKENS[:50], TOKENS[50:]), answer_ids=TOKENS[:1])


@dataclass
class Told:
    """An engine that answers by a rule and remembers what it was asked."""

    rule: object
    forgets_prefixes: bool = True
    asked: list = field(default_factory=list)
    batch = 2
    tokenizer: object = None
    facts = None

    def ask(self, questions):
        self.asked += questions
        return [self.rule(question) for question in questions]

    def settle(self):
        self.asked.append("settle")

    def forget_prefixes(self):
        self.asked.append("forget")

    def close(self):
        pass


def rule(question):
    if question.policy is None:
        return reply("4", "8", text="The code is 4821.")
    return reply("4", "8", text=" 4821", policy=question.policy, reused=80)


def test_each_item_is_asked_cold_its_donors_are_kept_and_every_policy_starts_without_prefixes():
    engine = Told(rule)
    (records,) = MeasuredServer(engine).measure([(ITEM, ("none", "span_head(8)", "cold"))])
    assert [record.policy for record in records] == ["none", "span_head(8)", "cold"]
    cold, *donors = engine.asked[:3]
    assert (cold.reuse, cold.capture) == (False, False)
    assert [(d.reuse, d.capture, d.most) for d in donors] == [(False, True, 1)] * 2
    assert len({d.salt for d in donors}) == 1
    assert cold.salt != donors[0].salt
    assert engine.asked[3:5] == ["settle", "forget"]
    warm = engine.asked[5]
    assert (warm.reuse, warm.capture, warm.policy) == (True, False, "none")
    assert warm.salt == donors[0].salt
    assert engine.asked[6] == "forget"
    again = engine.asked[8]
    assert (again.reuse, again.policy) == (False, None)
    assert again.salt not in (cold.salt, warm.salt), "the noise floor is computed, not cached"
    assert all(record.right and record.cold_right for record in records), "answers may talk"


def test_items_that_cold_answers_wrongly_cost_cold_alone_if_told_so():
    other = replace(CASE, number=1, answer="9")
    wrong = replace(ITEM, case=other)
    engine = Told(rule)
    work = [(wrong, ("none",)), (ITEM, ("none",))]
    nothing, records = MeasuredServer(engine).measure(work, cold_right_only=True)
    assert nothing == []
    assert [record.case_id for record in records] == [CASE.case_id]
    asked = [q for q in engine.asked if not isinstance(q, str)]
    assert sum(other.case_id in q.salt for q in asked) == 1
    alone = Told(rule)
    assert MeasuredServer(alone).measure([(wrong, ("none",))], cold_right_only=True) == [[]]
    assert len(alone.asked) == 1


def test_a_red_team_attacks_whatever_can_be_certified():
    def leaking(question):
        if question.policy is None:
            return reply("4", "8", text="It is 4821, they say.")
        return reply("4", "8", text="7", policy=question.policy, reused=80)

    served = MeasuredServer(Told(leaking, tokenizer=Words()))
    attacked = AttackedEngine(engine=served, policy="none")
    assert attacked.batch == 2
    (answered,) = attacked.answers([CASE])
    assert answered.counts, "answers may talk"
    assert answered.leaked
    assert answered.lost
    (nothing,) = attacked.answers([replace(CASE, answer="9")])
    assert nothing is None, "cold is wrong: it says nothing of the policy"


class Words:
    """A tokenizer: a token a word."""

    eos_token_id = 0

    def __call__(self, text, **_):
        return {"input_ids": list(range(1, 2 + len(text.split())))}


def test_where_prefixes_stay_every_policy_has_donors_of_its_own():
    engine = Told(rule, forgets_prefixes=False)
    MeasuredServer(engine).measure([(ITEM, ("none", "span_head(8)"))])
    salts = [q.salt for q in engine.asked if q != "settle" and q.capture]
    assert len(salts) == 4
    assert len(set(salts)) == 2


@pytest.mark.parametrize(
    "said",
    [
        {"policy": "none", "outcome": "discovery_only", "reused": 0},
        {"policy": "none", "outcome": "declined", "reused": 80},
        {"policy": "span_head(9)", "reused": 80},
    ],
    ids=["discovery", "declined", "another policy"],
)
def test_what_the_engine_did_not_confirm_is_no_record(said):
    def unconfirmed(question):
        return rule(question) if question.policy is None else reply("4", **said)

    assert MeasuredServer(Told(unconfirmed)).measure([(ITEM, ("none",))]) == [[]]


def test_a_policy_that_declines_an_item_is_said_to_and_leaks_are_seen():
    def leaking(question):
        if question.policy == "span_head(8)":
            return reply("4", policy="span_head(8)", outcome="declined")
        return reply("7", policy="none", reused=80) if question.policy else reply("4", text="4821")

    engine = MeasuredServer(Told(leaking))
    (records,) = engine.measure([(ITEM, ("none", "span_head(8)"))])
    naive, declined = records
    assert naive.leaked
    assert not naive.cold_leaked
    assert (declined.declined_tokens, declined.recomputed_tokens) == (80, 0)


def test_reasoning_that_took_all_the_tokens_is_no_answer():
    def cut_short(question):
        given = {} if question.policy is None else {"policy": question.policy, "reused": 80}
        return reply("4", text="<think>It says 4821, but before", **given)

    ((record,),) = MeasuredServer(Told(cut_short)).measure([(ITEM, ("none",))])
    assert (record.answer, record.cold_right, record.leaked) == ("", False, False)


class Templated(Words):
    """A tokenizer with a chat template that can switch thinking off."""

    chat_template = "as below"

    def __init__(self):
        self.texts = []

    def apply_chat_template(self, messages, *, enable_thinking, **_):
        said = " ".join(f"[{m['role']}] {m['content']}" for m in messages)
        return f"{said} [assistant]" + ("" if enable_thinking else " <think></think>")

    def __call__(self, text, **_):
        self.texts.append(text)
        return super().__call__(text)


def test_questions_are_put_in_the_models_own_template_with_thinking_off():
    tokenizer = Templated()
    ask = Ask(instruction="Read.", body="The code is 4821.", question="What is the code?")
    encode(tokenizer, ask)
    (text,) = tokenizer.texts
    assert text.startswith("[")
    assert "The code is 4821." in text
    assert text.endswith("[assistant] <think></think>")


def test_without_a_template_the_contents_stand_as_they_are():
    tokenizer = Templated()
    tokenizer.chat_template = None
    encode(tokenizer, Ask(instruction="Read.", body="The code is 4821.", question="What is it?"))
    (text,) = tokenizer.texts
    assert text.endswith("Answer:")
    assert "[assistant]" not in text


def test_answers_of_thinking_models_stand_behind_their_reasoning():
    def thinking(question):
        given = {"policy": question.policy, "reused": 80} if question.policy else {}
        return reply("4", text="<think>7 it was, or 4821</think>\n\n4821", **given)

    ((record,),) = MeasuredServer(Told(thinking)).measure([(ITEM, ("none",))])
    assert (record.answer, record.leaked) == ("4821", False)


def test_a_completion_is_read_by_token_ids_and_anything_else_is_named():
    body = {
        "choices": [
            {
                "text": " 48",
                "logprobs": {
                    "tokens": ["token_id:5", "token_id:9"],
                    "top_logprobs": [{"token_id:5": -0.1, "token_id:6": -3.0}, {"token_id:9": 0.0}],
                },
            }
        ],
        "kv_transfer_params": {"semblend": {"outcome": "cold"}},
    }
    read = reply_of(body)
    assert read.tokens == ("5", "9")
    assert read.top[0] == {"5": -0.1, "6": -3.0}
    assert read.said == {"outcome": "cold"}
    for wrong in ({}, {"choices": []}, {"choices": [{"text": "a", "logprobs": 3}]}):
        with pytest.raises(ServerError):
            reply_of(wrong)
