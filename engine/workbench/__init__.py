"""Workbench: the object behind pages and commands that owns model, trials, benchmark, comparison and history."""

from engine.workbench.workbench import RECORDED, Workbench, current

__all__ = ["RECORDED", "Workbench", "current"]
