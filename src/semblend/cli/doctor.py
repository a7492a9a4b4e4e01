"""`semblend doctor ENGINE`: what SemBlend would do in this installation, and why."""

from __future__ import annotations

import typer

from semblend.cli.doctor_sglang import doctor_sglang
from semblend.cli.doctor_trtllm import doctor_trtllm
from semblend.cli.doctor_vllm import doctor_vllm

doctor = typer.Typer(
    help="Check what SemBlend would do in an installed engine, and why.",
    no_args_is_help=True,
)
doctor.command("vllm")(doctor_vllm)
doctor.command("sglang")(doctor_sglang)
doctor.command("trtllm")(doctor_trtllm)
