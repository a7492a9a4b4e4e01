"""The measurement itself, on the reference model: it can fail, and cold is its own oracle."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from semblend.cli.main import app
from semblend.core.errors import StorageError
from semblend.engine.model import load_model
from semblend.planning.certificates import Certificate, certificate_folders, look_up
from semblend.planning.policies.base import known_policies, policy_from_spec
from semblend.quality.bound import Bound
from semblend.quality.certifying import candidates, choice_cells
from semblend.quality.certifying import grid as whole_grid
from semblend.quality.curves import curves
from semblend.quality.drift import measure_drift
from semblend.quality.issuing import issue, part_of, read_curves
from semblend.quality.items import data_fingerprint, to_item
from semblend.quality.lab import Lab, Loaded
from semblend.quality.measure import measure
from semblend.quality.redteam.attempts import Attempt
from semblend.quality.redteam.finds import findings_of
from semblend.quality.redteam.grammar import Structure
from semblend.quality.reports.figure_tables import policies_markdown
from semblend.quality.shards import MeasurementJob, measure_job, record_files
from semblend.quality.suite import Cell, Records, read_records, run_cells
from semblend.quality.texts.workloads import WORKLOADS
from tests.quality.test_figures import GOOD, WRONG, rows

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "semblend-reference-27m"
SAFE = candidates()[0]


@pytest.fixture(scope="module")
def lab():
    torch.set_num_threads(1)
    made = Lab(load_model(str(MODEL), device="cpu", dtype="float32"), capacity_tokens=20_000)
    made.use_drift(measure_drift(made, length=600, long=2, short=0))
    yield made
    assert made.pool.allocator.free == made.pool.allocator.total
    made.close()


def item(lab, name, number, tokens=500):
    return to_item(WORKLOADS[name](11, number, tokens), lab.model.tokenizer)


def test_all_equals_cold_for_every_workload(lab):
    for name in ("instruction", "composed", "edited_exchanged", "control_negation"):
        cold, everything = measure(lab, item(lab, name, 0), ["cold", "all"])
        assert everything.kl <= 1e-6
        assert everything.same
        assert cold.kl <= 1e-6
        assert everything.declined_tokens == everything.reusable_tokens


@pytest.mark.parametrize("policy", ["none", "span_head(8)"])
def test_rows_asked_for_one_by_one_are_those_of_one_run(lab, policy):
    one, take = item(lab, "composed", 1), []
    spans, chosen = lab.spans_of(one), policy_from_spec(policy)
    loaded = Loaded(lab, one, spans, [chosen], take)
    forced = np.concatenate((one.answer_ids, one.answer_ids)).astype(np.int32)
    trial = lab.trial(one, spans, loaded.under(chosen), chosen, forced, take)
    want = lab.logits([trial])[0]
    *before, last = trial.runs()
    first = len(last.tokens) - len(forced)
    alone = [
        replace(last, tokens=last.tokens[at : at + 1], start=last.start + at, logit_rows=1)
        for at in range(first, len(last.tokens))
    ]
    got = lab.compute([*before, replace(last, tokens=last.tokens[:first], logit_rows=0), *alone])
    for pages in take:
        lab.pool.allocator.release(pages)
    assert got.shape == want.shape == (len(forced), lab.model.vocab_size)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_naive_reuse_fails_on_exchanged_subjects_and_the_certified_policy_does_not(lab):
    records = [
        record
        for number in (0, 3, 6, 9)  # the value right behind the changed word
        for record in measure(lab, item(lab, "edited_exchanged", number), ["none", SAFE])
    ]
    naive = [record for record in records if record.policy == "none"]
    safe = [record for record in records if record.policy == SAFE]
    assert sum(record.cold_right for record in naive) >= 3
    assert sum(record.leaked for record in naive) >= 2
    assert all(record.same and not record.leaked for record in safe)


def test_quality_does_not_fall_as_the_ratio_rises(lab):
    grids = [cls.grid for cls in known_policies().values() if cls.ordered and len(cls.grid) > 1]
    specs = ["none", *dict.fromkeys(spec for grid in grids for spec in grid), "all"]
    kl = dict.fromkeys(specs, 0.0)
    for number in (0, 3):
        for record in measure(lab, item(lab, "edited_exchanged", number, 350), specs):
            kl[record.policy] += record.kl
    noise = 0.05 * kl["none"]
    for grid in grids:
        steps = [kl["none"], *(kl[spec] for spec in grid), kl["all"]]
        assert all(after <= before + noise for before, after in pairwise(steps))


def test_a_policys_price_is_what_it_computes(lab):
    for record in measure(lab, item(lab, "edited_renamed", 1), ["none", "span_head(8)", SAFE]):
        assert record.reusable_tokens <= record.prompt_tokens
        computed = record.recomputed_tokens + record.declined_tokens
        assert (computed > 0) == (record.policy != "none")
        assert record.probe_tokens == 0  # nothing is displaced: nobody asks for attention
    for record in measure(lab, item(lab, "composed", 1, 1024), ["span_head(8)", SAFE]):
        assert (record.probe_tokens > 0) == (record.policy == SAFE)


def test_deviation_starts_behind_layer_zero_and_at_the_span(lab):
    (curve,) = curves(lab, item(lab, "edited_exchanged", 0), ["none"])
    assert curve.layers[0] < 1e-4
    assert max(curve.layers[1:]) > 1e-3
    assert curve.positions[0] is not None


def test_a_run_goes_on_where_it_stopped_and_drops_a_line_cut_short(lab, tmp_path):
    path = tmp_path / "records.jsonl"
    cell = Cell(workload="instruction", items=2, specs=("none", "span_head(8)"), lengths=(400,))
    run_cells(lab, [cell], Records(path), seed=2)
    whole = path.read_text("utf-8")
    assert len(read_records([path])) == 4
    path.write_text(whole[: whole.rindex("\n", 0, -1) + 30], encoding="utf-8")
    assert len(read_records([path])) == 3
    path.write_text(whole[: whole.rindex("\n", 0, -1) + 1], encoding="utf-8")
    seen = []
    run_cells(lab, [cell], Records(path), seed=2, progress=lambda *args: seen.append(args))
    assert len(read_records([path])) == 4
    assert seen[-1] == ("instruction", 2, 2)


def test_shards_share_the_items_without_gaps_or_overlap(lab, tmp_path):
    cell = Cell(workload="instruction", items=3, specs=("none",), lengths=(300,))
    for part in range(2):
        records = Records(tmp_path / f"records-{part}.jsonl")
        run_cells(lab, [cell], records, seed=2, shard=(part, 2))
    found = [r.case_id for p in sorted(tmp_path.iterdir()) for r in read_records([p])]
    assert sorted(found) == [f"instruction/instruction/{n}" for n in range(3)]


def certify(tmp_path, *options):
    command = [
        "certify", "--model", str(MODEL), "--items", "1", "--length", "300", "--policy", SAFE,
        "--records", str(tmp_path / "records"), "--output", str(tmp_path / "out"),
        "--page", str(tmp_path / "page.md"), "--device", "cpu", "--dtype", "float32",
        "--answers", "1.0", "--kl-epsilon", "1.0", "--redteam-items", "2", *options,
    ]  # fmt: skip
    return CliRunner().invoke(app, command, env={**os.environ, "COLUMNS": "120"})


def test_certify_chooses_confirms_judges_and_signs(tmp_path):
    """From nothing to a certificate that an engine would accept, in one small run."""
    result = certify(tmp_path, "--least-items", "1")
    assert result.exit_code in (0, 1), result.output
    (report,) = (tmp_path / "out").glob("*.html")
    assert "<svg" in report.read_text("utf-8")
    page = (tmp_path / "page.md").read_text("utf-8")
    assert "Near-duplicates" in page
    assert "Not covered: " in page
    assert "adversarial items" in page
    found = list((tmp_path / "out").glob("*.json"))
    # One item a workload is too few for a verdict either way; what is written must hold.
    if result.exit_code == 0:
        certificate = Certificate.from_json(found[0].read_text("utf-8"))
        fingerprint = certificate.fingerprint
        assert look_up(fingerprint, dtype="float32", folders=found).policy == certificate.policy
        seeds = [certificate.data[key]["seed"] for key in ("chosen_on", "confirmed_on")]
        assert seeds == [1, 2]
        assert certificate.figures["redteam"]["items"] >= 2
        assert certificate.figures["redteam"]["leaks"] == 0
    else:
        assert found == []
    # The same records under the default bound: one item a workload certifies nothing.
    again = certify(tmp_path, "--no-measure")
    assert again.exit_code == 1
    assert "no policy keeps the bound" in again.output
    assert certify(tmp_path, "--confirm-seed", "1").exit_code == 2


def test_processes_measure_what_one_process_measures(lab, tmp_path):
    cells = (Cell(workload="instruction", items=4, specs=("none",), lengths=(300,)),)
    job = MeasurementJob(
        model=str(MODEL), device="cpu", dtype="float32", cells=cells, seed=2,
        folder=tmp_path / "one", curves=(("instruction", ("none",)),),
    )  # fmt: skip
    told: list[int] = []
    measure_job(lab, job, told.append)
    assert told[-1] == 4
    assert told == sorted(told)
    several = replace(job, folder=tmp_path / "two", processes=2)
    told.clear()
    measure_job(lab, several, told.append)
    assert told[-1] == 4
    one, two = (
        {r.case_id: (r.answer, r.recomputed_tokens) for r in read_records(record_files(f))}
        for f in (job.folder, several.folder)
    )
    assert one == two
    assert len(record_files(several.folder)) == 2
    curves_found = [read_curves(sorted(f.glob("curves*"))) for f in (job.folder, several.folder)]
    assert {c.case_id for c in curves_found[0]} == {c.case_id for c in curves_found[1]}
    with pytest.raises(StorageError, match="failed"):
        measure_job(lab, replace(several, model=str(tmp_path)), told.append)


def figures(choice_right, fresh_right, *, bound):
    parts = []
    for right in (choice_right, fresh_right):
        mixed = [GOOD] * round(200 * right) + [WRONG] * round(200 * (1 - right))
        parts.append(part_of([*rows(mixed), *rows([WRONG] * 200, policy="none")], bound))
    return parts


@pytest.mark.parametrize(
    ("chosen", "fresh", "said"),
    [(1.0, 0.9, "answers fall"), (0.9, 1.0, "no policy keeps"), (1.0, 1.0, "")],
)
def test_a_choice_that_fresh_documents_do_not_confirm_is_no_certificate(lab, chosen, fresh, said):
    bound = Bound(redteam_items=0)
    choice, confirmation = figures(chosen, fresh, bound=bound)
    found = issue(
        choice, confirmation, [], model=lab.model, bound=bound, data={}, measured_on="here"
    )
    assert (found.certificate is None) == bool(said)
    assert said in found.refusal


def attempts(count, **changed):
    return [Attempt(structure=Structure(), seed=at, counts=True, **changed) for at in range(count)]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "no red team attacked it"),
        (attempts(50), "50 items, at least 100 expected"),
        ([*attempts(199), *attempts(1, leaked=True, lost=True)], "1 of 200 answers towards"),
        ([*attempts(97), *attempts(3, lost=True)], "3 of 100 answers lost"),
        (attempts(100), ""),
    ],
)
def test_a_policy_that_the_red_team_breaks_gets_no_certificate(lab, found, said):
    bound = Bound(redteam_items=100)
    choice, confirmation = figures(1.0, 1.0, bound=bound)
    redteam = None if found is None else findings_of(found, policy="p", seed=1)
    result = issue(
        choice, confirmation, [], model=lab.model, bound=bound, data={}, measured_on="here",
        redteam=redteam,
    )  # fmt: skip
    assert (result.certificate is None) == bool(said)
    assert said in result.refusal
    if not said:
        assert result.certificate.figures["redteam"]["most_leaks"] == pytest.approx(
            0.0295, abs=1e-4
        )


def test_the_shipped_certificate_holds_for_the_bundled_model(lab):
    standing = look_up(
        lab.model.fingerprint,
        dtype="float32",
        folders=certificate_folders()[-1:],
        now=datetime(2026, 12, 1, tzinfo=UTC),
    )
    assert standing.policy is not None, standing.detail
    assert standing.policy in whole_grid()
    bound = Bound().to_dict()
    assert {name: bound[name] for name in standing.certificate.bound} == standing.certificate.bound
    chosen_on, confirmed_on = (
        standing.certificate.data[key] for key in ("chosen_on", "confirmed_on")
    )
    assert chosen_on["seed"] != confirmed_on["seed"]
    cells = choice_cells(200)
    assert chosen_on["fingerprint"] == data_fingerprint(
        case for cell in cells for case in cell.cases(chosen_on["seed"])
    )
    figures = standing.certificate.figures
    controls = [row for row in figures["chosen"] if row["workload"].startswith("control_")]
    assert sum(row["items"] for row in controls) == 1000
    assert sum(row["towards_donor"] for row in controls) == 0
    naive = [row for row in figures["naive"] if row["workload"] == "edited_exchanged"]
    assert naive[0]["right"] < 0.5 * naive[0]["cold_right"]
    for row in figures["chosen"]:
        assert row["items"] >= 200
        assert row["workload"] == "continuation" or row["difference"] >= -0.01
        if row["workload"].startswith("edited_"):
            assert row["recompute"] <= 0.15


def test_the_leaderboards_page_and_the_docs_know_every_policy():
    page = (ROOT / "docs" / "leaderboard.md").read_text("utf-8")
    quality = (ROOT / "docs" / "quality.md").read_text("utf-8")
    assert policies_markdown() in quality
    for spec in {spec for cls in known_policies().values() for spec in cls.grid}:
        assert f"`{spec}`" in page
    rows = json.loads((ROOT / "docs" / "leaderboard" / "figures.json").read_text("utf-8"))
    assert all(row["items"] >= 200 for row in rows)
