"""Promise: a flag is its field. What nobody gave is the field's default, what was given arrives."""

from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from semblend.engine.options import EngineOptions
from semblend.fleet.placement.expected_time import FleetCost
from semblend.serve.gateway.options import GatewayOptions
from semblend.serve.options import ServeOptions
from semblend.terminal.field_flags import values_of, with_flags

OPTIONS = [ServeOptions, EngineOptions, GatewayOptions, FleetCost]


def given(options, *arguments):
    """What a command with the flags of some options gets, by field."""
    seen = {}

    @with_flags(options)
    def command(**flags):
        seen.update(values_of(options, flags))

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return seen


@pytest.mark.parametrize("options", OPTIONS)
def test_what_nobody_gave_is_the_fields_default(options):
    values = given(options)
    assert values
    defaults = {field.name: field.default for field in fields(options)}
    assert values == pytest.approx({name: defaults[name] for name in values})
    for name, value in values.items():
        assert type(value) is type(defaults[name]), name


def test_what_was_given_arrives_in_the_fields_unit():
    assert given(EngineOptions, "--pool-mib=3", "--donor-disk-mib=1")["pool_bytes"] == 3 * 2**20
    assert given(FleetCost, "--prefill-us-per-token=40")["seconds_per_token"] == pytest.approx(4e-5)
    values = given(ServeOptions, "--allow-host=a", "--allow-host=b", "--queue-timeout=2.5")
    assert values["allowed_hosts"] == ("a", "b")
    assert values["queue_timeout_s"] == 2.5
    assert given(ServeOptions, "--trust-tenant-header")["trust_tenant_header"] is True
