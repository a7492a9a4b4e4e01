"""The command group. User errors end with one sentence and exit code 2."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from semblend.core.errors import SemBlendError


class Commands(TyperGroup):
    """Runs a command and reports our errors, and unusable files, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SemBlendError as error:
            said = str(error)
        except ModuleNotFoundError as error:
            said = f"package {error.name!r} is required but not installed (see docs/install.md)"
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        except UnicodeDecodeError as error:
            said = f"a file is not valid UTF-8: {error.reason} at byte {error.start}"
        typer.secho(f"semblend {ctx.invoked_subcommand}: {said}", err=True, fg="red")
        raise typer.Exit(2)
