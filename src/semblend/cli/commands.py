"""The command group: whatever a user got wrong ends in a sentence and exit code 2."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from semblend.core.errors import SemBlendError


class Commands(TyperGroup):
    """Runs a command; no error of ours, and no file that cannot be used, shows a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except SemBlendError as error:
            said = str(error)
        except ModuleNotFoundError as error:
            said = f"the package {error.name!r} is needed and not installed (docs/install.md)"
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        except UnicodeDecodeError as error:
            said = f"a file is not text in UTF-8: {error.reason} at byte {error.start}"
        typer.secho(f"semblend {ctx.invoked_subcommand}: {said}", err=True, fg="red")
        raise typer.Exit(2)
