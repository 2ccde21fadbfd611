"""Groups of commands that are imported when they are used: ``moiety --help`` needs only their names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from typer.core import TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from click import Command, Context

GROUPS = {
    "data": ("moiety.cli.data_commands", "Data sets by name: list them, fetch them, check their files."),
    "deploy": ("moiety.cli.deploy", "Train on real devices through Flower."),
}
"""The module of each group, where it has the same name, and what its help says."""


class LazyGroup(TyperGroup):
    """One of ``GROUPS``: its module is imported when its commands are listed or one of them is called."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The names of the group's commands."""
        self._import_commands()
        return super().list_commands(ctx)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """The command of a name, if there is one."""
        self._import_commands()
        return super().get_command(ctx, cmd_name)

    def _import_commands(self) -> None:
        if not self.commands:
            name = str(self.name)
            module, _ = GROUPS[name]
            self.commands = get_group(getattr(importlib.import_module(module), name)).commands
