"""All transforms, by name. A transform registered here is built, tested and documented."""

from __future__ import annotations

from collections.abc import Sequence

from sembench import plugins
from sembench.errors import UsageError
from sembench.plugins import load_plugin
from sembench.transforms.base import Transform
from sembench.transforms.entity_swap_control import EntitySwapControl
from sembench.transforms.exact_repeat import ExactRepeat
from sembench.transforms.fact_divergent_paraphrase import FactDivergentParaphrase
from sembench.transforms.fact_paraphrase import FactParaphrase
from sembench.transforms.fuzzy_edit import FuzzyEdit
from sembench.transforms.instruction_variant import InstructionVariant
from sembench.transforms.leading_evidence_new_task import LeadingEvidenceNewTask
from sembench.transforms.multi_donor_composite import MultiDonorComposite
from sembench.transforms.negative_control import NegativeControl
from sembench.transforms.question_paraphrase import QuestionParaphrase
from sembench.transforms.rag_reorder import RagReorder
from sembench.transforms.repeat_shifted import RepeatShifted
from sembench.transforms.same_evidence_new_task import SameEvidenceNewTask
from sembench.transforms.sparse_edit import SparseEdit

TRANSFORMS: dict[str, Transform] = {
    transform.name: transform
    for transform in (
        ExactRepeat(),
        InstructionVariant(),
        SameEvidenceNewTask(),
        LeadingEvidenceNewTask(),
        RagReorder(),
        MultiDonorComposite(),
        FuzzyEdit(),
        SparseEdit(),
        RepeatShifted(),
        QuestionParaphrase(),
        EntitySwapControl(),
        FactParaphrase(),
        FactDivergentParaphrase(),
        NegativeControl(),
    )
}


def transforms_named(names: Sequence[str]) -> list[Transform]:
    """The transforms called `names`, in that order; all built-in ones if none is named.

    Raises
    ------
    UsageError
        If a name is not registered, or given twice.
    """
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f"--transforms: {name!r} is given twice")
    return [transform_named(name) for name in names or TRANSFORMS]


def transform_named(name: str) -> Transform:
    """The transform called `name`, built in or from a plug-in.

    Raises
    ------
    UsageError
        If there is none, or the plug-in is not a transform.
    """
    if name in TRANSFORMS:
        return TRANSFORMS[name]
    made = load_plugin(plugins.TRANSFORMS, name)
    if made is None:
        raise UsageError(f"--transforms: {name!r} is not one of {', '.join(TRANSFORMS)}")
    if not (isinstance(made, type) and issubclass(made, Transform)):
        raise UsageError(f"--transforms: the plug-in {name!r} names no Transform class")
    if made.name != name:
        raise UsageError(f"--transforms: the plug-in {name!r} calls itself {made.name!r}")
    return made()
