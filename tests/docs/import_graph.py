"""Import diagram: draws the packages and their imports into docs/structure.md (python -m tests.docs.import_graph).

An arrow means "imports". Arrows that others imply are omitted (transitive reduction), because they say nothing about
the order of the layers.
"""

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "structure.md"
DRAWING = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)
VALUES = "values"
"""Node of the modules directly in `engine/`, except those named in OWN_NODE."""
OWN_NODE = {"engine": "engine", "engine.calls": "engine", "engine.__main__": "commands", "engine.opening": "opening"}
"""Nodes of modules that have no package."""
LABELS = {
    VALUES: "specs, results, samples, tasks, errors …",
    "engine": "import engine",
    "app": "app.py",
    "opening": "open_engine",
}


def main() -> int:
    """Write the diagram and return the exit status: 1 if it was out of date."""
    text = PAGE.read_text("utf-8")
    drawn = DRAWING.sub(lambda _old: diagram(), text)
    PAGE.write_text(drawn, "utf-8")
    return int(drawn != text)


def diagram() -> str:
    """Return the Mermaid diagram."""
    imports = reduced(package_imports())
    nodes = [f'    {name}["{LABELS.get(name, name)}"]' for name in sorted(imports)]
    arrows = [f"    {name} --> {other}" for name in sorted(imports) for other in sorted(imports[name])]
    return "\n".join(["flowchart TD", *nodes, *arrows, ""])


def package_imports() -> dict[str, set[str]]:
    """Return the imports of each package, by node name."""
    sys.path.insert(0, str(ROOT))
    graph = grimp.build_graph("engine", "pages", cache_dir=None)
    found: dict[str, set[str]] = {}
    for module in sorted(graph.modules):
        node = found.setdefault(_node(module), set())
        node |= {_node(other) for other in graph.find_modules_directly_imported_by(module)}
    found["app"] = {_node(name) for name in _imported_by(ROOT / "app.py") if name.startswith(("engine.", "pages."))}
    for name, others in found.items():
        others.discard(name)
    return found


def reduced(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the transitive reduction of an acyclic graph."""
    behind: dict[str, set[str]] = {}

    def reachable(name: str) -> set[str]:
        if name not in behind:
            behind[name] = set().union(*({other, *reachable(other)} for other in imports[name]))
        return behind[name]

    return {
        name: {one for one in others if not any(one in reachable(other) for other in others)}
        for name, others in imports.items()
    }


def _imported_by(program: Path) -> list[str]:
    imports = (node for node in ast.walk(ast.parse(program.read_text("utf-8"))) if isinstance(node, ast.ImportFrom))
    return [f"{node.module}.{alias.name}" for node in imports for alias in node.names]


def _node(module: str) -> str:
    if module in OWN_NODE:
        return OWN_NODE[module]
    top, *inner = module.split(".")
    if top == "pages":
        return "pages"
    return inner[0] if (ROOT / "engine" / inner[0]).is_dir() else VALUES


if __name__ == "__main__":
    sys.exit(main())
