"""Head of the page: what lets a first visit paint once, in place, instead of piece by piece.

Streamlit learns its layout, its sidebar and the heights of its widgets from messages and scripts that come one after
the other, and everything drawn until then moves. Here the sidebar's room and the page's width are fixed from the start,
the modules of widgets are there before the first of them is drawn, and a page is drawn from top to bottom.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
_STYLE, _SCRIPT = ((HERE / f"first_paint.{kind}").read_text("utf-8") for kind in ("css", "js"))
HEAD = f"<style>{_STYLE}</style><script>{_SCRIPT}</script>".encode()
"""Style and script for the head of Streamlit's page."""


def modules_first(modules: Sequence[str], imported: Iterable[str] = ()) -> bytes:
    """Return the tags for the head of the page that load modules before Streamlit's own script starts.

    Scripts of type module run in the order of their tags, each with all that it imports, so that Streamlit's script
    waits for these; a module that cannot be had lets it start all the same. imported: what these import in turn, which
    is fetched together with them.
    """
    every = dict.fromkeys((*imported, *modules))
    links = (f'<link rel="modulepreload" crossorigin href="{path}">' for path in every)
    script = "".join(f'import "{path}";' for path in modules)
    return f'{"".join(links)}<script type="module">{script}</script>'.encode()
