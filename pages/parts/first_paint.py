"""Head of the page: what lets a first visit paint once, in place, instead of piece by piece.

Streamlit learns its layout, its sidebar and the heights of its widgets from messages and scripts that come one after
the other, and everything drawn until then moves. Here the sidebar's room and the page's width are fixed from the start,
and a page is drawn from top to bottom.
"""

from pathlib import Path

HERE = Path(__file__).parent
_STYLE, _SCRIPT = ((HERE / f"first_paint.{kind}").read_text("utf-8") for kind in ("css", "js"))
HEAD = f"<style>{_STYLE}</style><script>{_SCRIPT}</script>".encode()
"""Style and script for the head of Streamlit's page."""
