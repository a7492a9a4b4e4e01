"""The red team finds what breaks a policy, makes it small, and counts only what counts."""

import math
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from semblend.engine.model import load_model
from semblend.kv.depth_drift import read_table
from semblend.planning.certificates import SHIPPED, Certificate, depth_table
from semblend.planning.policies.base import policy_from_spec
from semblend.quality.certifying import candidates
from semblend.quality.intervals import at_most
from semblend.quality.items import Ask, Case, to_item
from semblend.quality.lab import Lab
from semblend.quality.measure import measure
from semblend.quality.redteam.attempts import add_attempts, attempt_of, read_attempts
from semblend.quality.redteam.engines import Answered, answered
from semblend.quality.redteam.finds import findings_of
from semblend.quality.redteam.forms import FORMS
from semblend.quality.redteam.grammar import GENES, Structure, random_structure
from semblend.quality.redteam.regressions import added, regressions, write_regressions
from semblend.quality.redteam.search import Search
from semblend.quality.redteam.summaries import said_of
from semblend.quality.redteam.writing import ATTRIBUTE, write

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "semblend-reference-27m"
(FLOAT32,) = SHIPPED.glob("*-float32.json")
CERTIFIED = Certificate.from_json(FLOAT32.read_text("utf-8")).policy
SURVIVOR = candidates()[0]
UNBOUNDED = "depth_shift(span_dependents(2, 8) + query_attention(0.05, 16, 'displaced'))"
"""The survivor where it may decline nothing: short prompts would cost more than its budget."""
BOUNDED = "depth_shift(budget(span_dependents(2, 8) + query_attention(0.05, 16, '{}'), 0.15, 0.4))"


def structures(count):
    rng = random.Random(5)
    return [random_structure(rng) for _ in range(count)]


def test_every_structure_states_the_right_answer_and_tempts_with_the_donors():
    for seed, structure in enumerate(structures(400)):
        case = write(structure, seed)
        (donors_fact,) = case.leaked
        for text in (case.target.body, case.donors[0].body):
            assert case.answer in text, structure.signature
            assert donors_fact in text, structure.signature
        assert case.answer != donors_fact
        assert case.target.body != case.donors[0].body
        assert write(structure, seed) == case


def test_donors_of_a_neutral_case_state_nothing_that_would_be_a_leak():
    changed = 0
    for seed, structure in enumerate(structures(400)):
        case, neutral = write(structure, seed), write(structure, seed, neutral=True)
        assert (neutral.target, neutral.answer, neutral.leaked) == (
            case.target, case.answer, case.leaked
        )  # fmt: skip
        assert len(neutral.donors) == len(case.donors)
        # A donor that disagrees speaks of others; edits stay where they are.
        assert neutral.donors[0] != case.donors[0], structure.signature
        for mine, other in zip(case.donors, neutral.donors, strict=True):
            assert mine.instruction == other.instruction
            assert mine.body.count("\n") == other.body.count("\n"), structure.signature
        form = FORMS[structure.form]
        if structure.change != "attribute" or ATTRIBUTE not in form.text + form.above:
            asked = re.escape(form.question.format(subject="?")).replace(r"\?", "(.+)", 1)
            subject = re.fullmatch(asked, case.target.question)[1]
            assert subject in case.donors[0].body, structure.signature
            assert subject not in neutral.donors[0].body, structure.signature
            changed += 1
    assert changed > 200


def test_every_value_of_every_gene_changes_the_prompts():
    usual = Structure(gap="8", change="exchanged", filler="abbreviation", form="code")
    for gene, values in GENES.items():
        shown = {}
        plain = usual.with_gene("form", "pronoun") if gene == "between" else usual
        for value in values:
            cases = [write(plain.with_gene(gene, value), seed) for seed in range(12)]
            shown.setdefault(tuple((c.target, c.donors) for c in cases), []).append(value)
        same = [values for values in shown.values() if len(values) > 1]
        assert not same, (gene, same)


class Brittle:
    """An engine with a hole of a known shape."""

    batch = 1

    def __init__(self, *, margin=math.inf, unprompted=False):
        self.asked = Counter()
        self.margin = margin
        self.unprompted = unprompted

    def answers(self, cases):
        return [self.answer(case) for case in cases]

    def answer(self, case):
        words = re.search(r"a\.k\.a\.|approx\.|p\.m\.", case.target.body)
        subject = re.fullmatch(r"What does (.+) work as\?", case.target.question)
        told = subject is not None and any(subject[1] in donor.body for donor in case.donors)
        hole = case.kind == "works" and words is not None and (told or self.unprompted)
        self.asked[case.kind] += 1
        return Answered(
            case=case,
            cold=case.answer,
            warm=case.leaked[0] if hole else case.answer,
            cold_is_right=True,
            warm_is_right=not hole,
            margin=self.margin,
            reusable_tokens=100,
            recomputed_tokens=10,
        )


def test_the_search_finds_a_hole_makes_it_small_and_spends_its_items_there():
    engine = Brittle()
    search = Search(engine=engine, seed=1)
    search.run(tries=1500)
    found = findings_of(search.attempts, policy="p", seed=1)
    assert found.items == 1500
    assert found.leaks > 20
    chance = [s for s in structures(1500) if s.form == "works"]
    assert engine.asked["works"] > 1.5 * len(chance)
    smallest = min((a.shrunk for a in search.attempts if a.shrunk), key=lambda s: len(s.signature))
    assert smallest.form == "works"
    assert smallest.filler == "abbreviation"
    # Everything that does not matter is plain again.
    odd = set(smallest.to_dict().items()) - set(Structure().to_dict().items())
    assert {gene for gene, _ in odd} == {"form", "filler", "gap"}


def test_an_answer_that_no_donor_states_is_a_loss_and_no_leak():
    search = Search(engine=Brittle(unprompted=True), seed=1)
    search.run(tries=1500)
    found = findings_of(search.attempts, policy="p", seed=1)
    assert found.unprompted > 5
    assert (found.leaks, found.lost) == (0, found.unprompted)
    assert all(one.unprompted == one.lost for one in search.attempts)


def test_the_search_learns_which_items_the_model_can_answer():
    class Narrow(Brittle):
        """Answers one form cold, and leaks nowhere."""

        def answer(self, case):
            told = super().answer(case)
            known = case.kind == "works"
            return replace(told, warm=case.answer, warm_is_right=True, cold_is_right=known)

    engine = Narrow()
    search = Search(engine=engine, seed=4)
    search.run(tries=600)
    chance = sum(s.form == "works" for s in structures(600))
    assert engine.asked["works"] > 1.5 * chance
    # Nothing is given up.
    assert set(GENES["form"]) == set(engine.asked)


def test_near_ties_and_declined_prompts_count_as_nothing_and_are_told():
    search = Search(engine=Brittle(margin=0.1), seed=1)
    search.run(tries=300)
    found = findings_of(search.attempts, policy="p", seed=1)
    assert (found.items, found.leaks, found.lost) == (0, 0, 0)
    assert found.ties_turned > 0
    assert f"{found.ties_turned} near ties" in found.sentence
    whole = Brittle().answer(write(Structure(), 1))
    assert whole.counts
    assert not replace(whole, declined_tokens=90).counts
    assert not replace(whole, cold_is_right=False).counts


def test_structures_that_are_asked_together_are_as_many_and_as_different():
    class Wide(Brittle):
        batch = 8
        together = ()

        def answers(self, cases):
            self.together = (*self.together, len(cases))
            return super().answers(cases)

    engine = Wide()
    search = Search(engine=engine, seed=1)
    search.run(tries=700)
    assert len(search.attempts) == len({attempt.seed for attempt in search.attempts}) == 700
    assert any(attempt.leaked for attempt in search.attempts)
    assert {size for size in engine.together if size > 1} == {8, 700 % 8}


def test_a_search_goes_on_where_it_was(tmp_path):
    path = tmp_path / "attempts.jsonl"
    first = Search(engine=Brittle(), seed=2)
    first.run(tries=40, tell=lambda attempt: add_attempts(path, [attempt]))
    with path.open("a") as file:
        file.write('{"cut short')
    again = Search(engine=Brittle(), seed=2, attempts=read_attempts([path]))
    assert again.attempts == first.attempts
    again.run(tries=60)
    assert len({attempt.seed for attempt in again.attempts}) == 60


def test_finds_join_the_regression_set_once(tmp_path):
    path = tmp_path / "regressions.jsonl"
    engine = Brittle()
    structure = Structure(form="works", gap="8", filler="abbreviation")
    attempts = [attempt_of(structure, s, engine.answer(write(structure, s))) for s in range(30)]
    found = added([], attempts, policy="p")
    assert [one.structure for one in found] == [structure]
    write_regressions(path, found)
    assert regressions(path) == found
    assert added(found, attempts, policy="q") == found


def test_what_could_not_be_found_is_said():
    attempts = [attempt_of(Structure(), 1, None)]
    found = findings_of(attempts, policy="p", seed=1)
    assert found.most_leaks == 1.0
    assert "form=table" in found.hardly_tried
    assert said_of(None) == "no red team"
    assert "0 of 0 adversarial items" in said_of(found.to_dict())


def test_no_leak_in_5000_items_bounds_leaks_by_six_in_ten_thousand():
    assert at_most(0, 5000) == pytest.approx(1 - 0.05 ** (1 / 5000), rel=1e-6)
    assert at_most(0, 5000) < 0.0006
    assert at_most(3, 10) > 0.3


def test_the_policies_to_certify_need_no_probe_that_engines_lack():
    for spec in candidates():
        assert policy_from_spec(spec).probes <= policy_from_spec("query_attention(0.05)").probes


@pytest.fixture(scope="module")
def lab():
    torch.set_num_threads(1)
    model = load_model(str(MODEL), device="cpu", dtype="float32")
    made = Lab(model, drift=read_table(depth_table(FLOAT32)))
    yield made
    made.close()


def judge(lab, case, policies):
    return measure(lab, to_item(case, lab.model.tokenizer), policies, cold_right_only=True)


def test_shipped_regressions_break_what_they_broke_and_not_the_survivor(lab):
    known = regressions()
    assert len(known) >= 10
    assert {"first", "lead"} & {one.structure.place for one in known}
    assert {"abbreviation", "foreign", "stops"} & {one.structure.filler for one in known}
    # Some of the first finds, and the latest: sentences in quotations, long abbreviations.
    for one in (*known[:4], *known[-2:]):
        old, new = judge(lab, one.case, (one.broke, UNBOUNDED))
        assert answered(one.case, old).lost, one.structure.signature
        assert not answered(one.case, new).lost, one.structure.signature


def test_what_stands_first_in_a_turn_survives_behind_another_instruction(lab):
    """Finds of a search on a GPU: eight tokens of the first sentence were not enough."""
    found = [one for one in regressions() if "span_dependents" in one.broke]
    assert len(found) == 8
    survivor = candidates()[0]
    reused = 0
    for one in (found[0], found[3]):
        old, new = (
            answered(one.case, each) for each in judge(lab, one.case, (one.broke, survivor))
        )
        assert old.lost, one.structure.signature
        assert not new.lost, one.structure.signature
        reused += new.reused_tokens
    assert reused, "a policy that declines everything survives anything"


def test_what_the_question_reads_far_behind_a_changed_name_is_computed_anew(lab):
    """Two letters exchange their writers; three sentences behind the name stands the fact."""
    target = (Path(__file__).parent / "far_from_the_name.txt").read_text("utf-8").rstrip("\n")
    one, other = "Maria Brandt", "Peter Rossi"
    donor = target.replace(one, "?").replace(other, one).replace("?", other)
    instruction = (
        "Below is a report from the archive. Use it, and nothing else, to answer what is asked at "
        "the end. Be brief and exact."
    )
    case = Case(
        workload="redteam",
        kind="first_person",
        number=0,
        target=Ask(instruction=instruction, body=target, question="Where does Peter Rossi live?"),
        donors=(Ask(instruction=instruction, body=donor, question="What is said here?"),),
        answer="Madrid",
        leaked=("Lisbon",),
    )
    displaced, changed = judge(
        lab, case, [BOUNDED.format(among) for among in ("displaced", "changed")]
    )
    assert answered(case, displaced).leaked, "two sentences reached it: the item shows nothing"
    assert not answered(case, changed).lost
    assert answered(case, changed).reused_tokens > 900
    assert changed.kl_worst < 0.02
