"""Result rows and files: nothing lost on the way, wrong fields named."""

import json
from dataclasses import fields

import pytest

from sembench.errors import ResultError
from sembench.results import (
    RESULT_VERSION,
    ROW_FIELDS,
    RequestRow,
    Result,
    RunMetadata,
    read_result,
    write_result,
)

ROW = RequestRow(
    item_id="i",
    dataset="d",
    transform="t",
    prompt_tokens=33,
    total_blocks=2,
    planned_donor_ids=("a", "b"),
    output_token_ids=(1, 2),
)
RUN = RunMetadata(run_id="r", engine="offline")
RESULT = Result(
    run=RUN,
    created_at_utc="2026-01-01T00:00:00Z",
    config={"block_size": 16},
    environment={"python": "3"},
    aggregate={"requests": 1},
    by_transform={"t": {"requests": 1}},
    requests=(ROW,),
)


def test_a_row_survives_json():
    again = RequestRow.from_dict(json.loads(json.dumps(ROW.to_dict())))
    assert again == ROW
    assert set(ROW.to_dict()) == set(ROW_FIELDS)


def test_fields_of_other_versions_are_kept():
    row = RequestRow.from_dict({**ROW.to_dict(), "from_the_future": [1]})
    assert row.extra == {"from_the_future": [1]}
    assert row.to_dict()["from_the_future"] == [1]


def test_a_result_survives_its_file(tmp_path):
    path = tmp_path / "deep" / "r.json"
    write_result(path, RESULT)
    assert read_result(path) == RESULT
    assert json.loads(path.read_text(encoding="utf-8"))["result_version"] == RESULT_VERSION
    assert [entry.name for entry in path.parent.iterdir()] == ["r.json"]


def test_a_result_of_version_1_is_read():
    old = {key: value for key, value in RESULT.to_dict().items() if key not in ("run", "paired")}
    old["result_version"] = "sembench.result.v1"
    assert Result.from_dict(old).requests == (ROW,)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"result_version": "sembench.result.v9"}, r"result\.result_version"),
        ({"aggregate": None}, r"result\.aggregate"),
        ({"requests": {}}, r"result\.requests"),
        ({"requests": [7]}, r"result\.requests\[0\]"),
        ({"requests": [{"item_id": "i"}]}, r"result\.requests\[0\]\.dataset"),
        ({"requests": [{**ROW.to_dict(), "total_blocks": "2"}]}, r"\.total_blocks"),
        ({"requests": [{**ROW.to_dict(), "ttft_ms": True}]}, r"\.ttft_ms"),
        ({"run": {"run_id": "x"}}, r"result\.run\.engine"),
    ],
)
def test_a_wrong_field_is_named(change, named):
    with pytest.raises(ResultError, match=named):
        Result.from_dict({**RESULT.to_dict(), **change})


def test_files_that_are_not_results_are_named(tmp_path):
    with pytest.raises(ResultError, match="none"):
        read_result(tmp_path / "none")
    (tmp_path / "broken").write_text("{", encoding="utf-8")
    with pytest.raises(ResultError, match="broken: not JSON"):
        read_result(tmp_path / "broken")


def test_every_row_field_is_null_until_measured():
    defaults = {f.name: f.default for f in fields(RequestRow)}
    for name in ROW_FIELDS:
        if name.startswith(("semantic_", "backend_", "planned_", "quality_", "audit_", "cold_")):
            assert defaults[name] is None
