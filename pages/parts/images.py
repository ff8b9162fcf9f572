"""Images inside HTML: Streamlit takes SVG elements out of it, but not images."""

from urllib.parse import quote


def data_address(svg: str) -> str:
    """Return the address of an image with this content."""
    return f"data:image/svg+xml,{quote(svg)}"
