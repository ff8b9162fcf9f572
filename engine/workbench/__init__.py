"""Workbench: the object behind pages and commands that owns model, trials, benchmark, comparison and history."""

from engine.workbench.workbench import Workbench, current

__all__ = ["Workbench", "current"]
