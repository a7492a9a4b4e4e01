"""What the adapter relies on is in the recordings of all generations, and it fits them."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from semblend.integration.trtllm import connector, upstream
from semblend.integration.trtllm.contract import IMPLEMENTED, REQUIRED, contract_problems
from tests.integration.trtllm import contract
from tests.integration.trtllm.generations import GENERATIONS

OURS = {
    "KvCacheConnectorScheduler": connector.SemBlendKvConnectorScheduler,
    "KvCacheConnectorWorker": connector.SemBlendKvConnectorWorker,
}
INHERITED = {
    "KvCacheConnectorScheduler": (
        "cancel_load",
        "release_prefix_reservation",
        "request_reset",
        "reserve_prefix",
    ),
    "KvCacheConnectorWorker": (
        "get_connector_meta",
        "get_finished_prefix_loads",
        "register_forward_pass_callable",
    ),
}
"""Methods that are knowingly left to upstream's defaults."""
RECORDINGS = {name: contract.recorded(name) for name in (*GENERATIONS, "newest")}
"""The newest is known by its documentation and tests: methods, not what requests show."""


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_call_of_a_generation_has_a_method_with_its_parameters(name):
    for kind, methods in RECORDINGS[name]["classes"].items():
        for method, facts in methods.items():
            ours = getattr(OURS[kind], method, None)
            if ours is None:
                assert not facts["abstract"], f"{kind}.{method} must be implemented"
                continue
            mine = [one for one in inspect.signature(ours).parameters if one != "self"]
            assert mine == facts["parameters"], f"{kind}.{method}"


@pytest.mark.parametrize("name", RECORDINGS)
def test_constructors_take_the_engines_arguments_and_nothing_else(name):
    for kind in OURS:
        assert RECORDINGS[name]["classes"][kind]["__init__"]["parameters"] == ["llm_args"]


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_simulator_shows_what_a_generation_shows(name):
    generation, record = GENERATIONS[name], RECORDINGS[name]
    assert list(generation.request_fields) == record["values"]["RequestData"]
    assert generation.module == record["module"]
    assert generation.module in upstream.CONNECTOR_MODULES


def module_of(record, *, without=None, changed=None):
    """A module with a recording's interface."""
    members = {}
    for kind, methods in record["classes"].items():
        body, abstract = {}, set()
        for method, facts in methods.items():
            if without == (kind, method):
                continue
            names = ["self", *facts["parameters"]]
            if changed == (kind, method):
                names.append("something_new")
            parameters = [
                inspect.Parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in names
            ]

            def function(*_):
                return None

            function.__signature__ = inspect.Signature(parameters)
            body[method] = function
            if facts["abstract"]:
                abstract.add(method)
        made = type(kind, (), body)
        made.__abstractmethods__ = frozenset(abstract)
        members[kind] = made
    return SimpleNamespace(**members)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_doctor_finds_no_problem_in_a_recorded_interface(name):
    assert contract_problems(module_of(RECORDINGS[name])) == []


@pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind in REQUIRED for method in REQUIRED[kind]]
)
def test_the_doctor_names_a_method_that_changed(kind, method):
    record = RECORDINGS["newer"]
    problems = contract_problems(module_of(record, changed=(kind, method)))
    assert any(f"{kind}.{method}" in problem for problem in problems)


def test_the_doctor_names_an_abstract_method_it_does_not_know():
    module = module_of(RECORDINGS["newer"])
    kind = module.KvCacheConnectorWorker
    kind.__abstractmethods__ = kind.__abstractmethods__ | {"cancel_load"}
    assert contract_problems(module) == [
        "KvCacheConnectorWorker.cancel_load must be implemented and is not known"
    ]


@pytest.mark.parametrize("kind", REQUIRED)
def test_every_method_of_the_newest_interface_is_known(kind):
    newest = RECORDINGS["newest"]["classes"][kind]
    known = {*REQUIRED[kind], *IMPLEMENTED[kind], *INHERITED[kind]}
    assert set(newest) == known
    assert not any(newest[name]["abstract"] for name in (*IMPLEMENTED[kind], *INHERITED[kind]))


@pytest.mark.parametrize("kind", REQUIRED)
def test_what_is_left_to_upstream_is_not_half_implemented(kind):
    """A reservation's three methods are asked for together, or the engine does not start."""
    assert not [name for name in INHERITED[kind] if name in vars(OURS[kind])]
    assert all(name in vars(OURS[kind]) for name in IMPLEMENTED[kind])


def test_the_doctor_names_a_default_that_became_abstract():
    module = module_of(RECORDINGS["newest"])
    kind = module.KvCacheConnectorScheduler
    kind.__abstractmethods__ = kind.__abstractmethods__ | {"reserve_prefix", "cancel_load"}
    assert contract_problems(module) == [
        "KvCacheConnectorScheduler.cancel_load must be implemented and is not known",
        "KvCacheConnectorScheduler.reserve_prefix must be implemented and is not known",
    ]


def test_a_recording_that_differs_is_told_in_words():
    live = {key: RECORDINGS["older"][key] for key in ("classes", "values")}
    told = contract.differences(live, RECORDINGS["newer"])
    assert any("register_kv_cache_layout" in one for one in told)
    assert any(one.startswith("RequestData") for one in told)


def test_clients_in_the_engines_own_process_find_its_desk(make):
    before = set(connector.local_desks())
    engine = make()
    assert set(connector.local_desks()) - before == {engine.scheduler.side}
    engine.scheduler.shutdown()
    assert set(connector.local_desks()) == before


def test_without_tensorrt_llm_the_module_can_be_imported():
    if upstream.connector_module() is not None:
        pytest.skip("TensorRT-LLM is installed here")
    assert connector.SemBlendKvConnectorScheduler.__mro__[1].__name__ == "_Scheduler"
