"""SemBlend on real text: it finds nearly all there is, and nothing where nothing is."""

from pathlib import Path

import pytest

from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.spec import BuildSpec, RecordChoice
from sembench.metrics import aggregate, by_transform
from sembench.offline import OfflineRun
from sembench.planners import PlannerSettings, make_planner
from sembench.tokenizers import load_tokenizer
from sembench.transforms import TRANSFORMS, Reuse

DATA = Path(__file__).parents[3] / "shared" / "data" / "evaluation.jsonl.xz"
SPEC = BuildSpec(
    name="evaluation",
    profile="longbench-v1",
    datasets=("squad", "prose_tech_mdn", "prose_tech_k8s", "prose_tech_github"),
    max_items_per_dataset=9,
    sample=RecordChoice.SEEDED,
)

pytestmark = pytest.mark.skipif(
    not DATA.exists(), reason="the shared evaluation data is not beside this checkout"
)


@pytest.fixture(scope="module")
def items():
    return list(build_items(SPEC, source_for(SPEC, data_dir=DATA), BuildReport()))


def rows(items, planner):
    words = load_tokenizer(None)
    settings = PlannerSettings(
        block_size=16, tokenizer=words.name, options={"semblend_min_reuse_ratio": 0.25}
    )
    run = OfflineRun(
        tokenizer=words, block_size=16, make_planner=lambda: make_planner(planner, settings)
    )
    return list(run.rows(items))


@pytest.fixture(scope="module")
def found(items):
    return rows(items, "semblend")


def test_the_planner_finds_nearly_all_there_is(items, found):
    assert len(items) >= 300
    ceiling = aggregate(rows(items, "oracle"))["semantic_eligible_block_rate"]
    figures = aggregate(found)
    assert figures["semantic_eligible_block_rate"] >= 0.95 * ceiling
    assert figures["errors"] == figures["planned_mismatched_tokens"] == 0


@pytest.mark.parametrize(
    "name", [name for name in TRANSFORMS if TRANSFORMS[name].reuse is Reuse.SEMANTIC]
)
def test_every_transform_with_reusable_content_has_lift(found, name):
    assert by_transform(found)[name]["semantic_eligible_lift"] > 0


def test_negative_controls_stay_at_zero(found):
    figures = aggregate(found)
    assert figures["negative_control_requests"] >= 30
    assert figures["negative_control_semantic_candidate_rate"] == 0.0
    assert figures["negative_control_exact_block_hit_rate"] == 0.0
