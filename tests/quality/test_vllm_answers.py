"""Answers of an engine beside its cold ones: nothing is asked twice, no loss can hide."""

from dataclasses import replace

import pytest
from benchmarks.vllm_answers import Answered, AnswerFile, report_control, report_policy

from semblend.bench.benchmark_report import BenchmarkReport

RIGHT = Answered(
    case="composed/composed/0",
    workload="composed",
    seed=7,
    length=1024,
    policy="span_head(8)",
    certified=True,
    outcome="materialised",
    prompt_tokens=1000,
    reused_tokens=800,
    recomputed_tokens=100,
    expected="4821",
    cold=" 4821",
    warm=" 4821",
    cold_right=True,
    warm_right=True,
    leaked=False,
)
LOST = replace(RIGHT, warm=" 17", warm_right=False)
COMPUTED = replace(RIGHT, outcome="declined", reused_tokens=0, recomputed_tokens=0)


def judged(answers):
    report = BenchmarkReport(benchmark="test", command="test")
    report_policy(report, answers, judged=True)
    return {row.metric for row in report.failed}


def test_a_loss_within_one_per_cent_passes_and_a_larger_one_does_not():
    assert judged([RIGHT] * 300) == set()
    assert judged([RIGHT] * 296 + [LOST] * 4) == {"loss"}
    assert judged([RIGHT] * 297 + [LOST] * 3) == set()


def test_answers_that_were_computed_after_all_do_not_thin_out_a_loss():
    assert judged([RIGHT] * 150 + [LOST] * 2 + [COMPUTED] * 140) == {"loss"}


def test_an_engine_that_hardly_reuses_proves_nothing():
    assert judged([RIGHT] * 100 + [COMPUTED] * 200) == {"items with confirmed reuse"}


def test_one_donors_fact_is_too_many():
    assert judged([RIGHT] * 299 + [replace(RIGHT, leaked=True)]) == {"donor's facts stated"}


@pytest.mark.parametrize(("answers", "able"), [([LOST] * 30, True), ([RIGHT] * 30, False)])
def test_a_control_that_passes_fails(answers, able):
    report = BenchmarkReport(benchmark="test", command="test")
    report_control(report, [replace(answer, leaked=able) for answer in answers])
    assert bool(report.failed) is not able


def test_answers_are_kept_and_a_line_cut_short_is_asked_again(tmp_path):
    path = tmp_path / "answers.jsonl"
    answers = AnswerFile(path)
    answers.add(RIGHT)
    answers.add(replace(RIGHT, case="composed/composed/1"))
    path.write_text(path.read_text()[:-9])
    again = AnswerFile(path)
    assert again.answers == [RIGHT]
    assert again.holds(RIGHT.case, 7, 1024, "span_head(8)")
    assert not again.holds("composed/composed/1", 7, 1024, "span_head(8)")
    assert not again.holds(RIGHT.case, 7, 1024, "none"), "another policy is another question"
    assert again.cold(RIGHT.case, 7, 1024) == RIGHT.cold, "cold answers depend on no policy"
    assert again.cold(RIGHT.case, 8, 1024) is None
    naive = replace(LOST, policy="none")
    again.add(naive)
    again.add(naive)
    assert AnswerFile(path).answers == [RIGHT, naive], "nothing is counted twice"
