"""Number formats for people: units, thousands separators and sensible digits."""

from datetime import UTC, datetime

from engine.units import quantity


def size(num_bytes: float) -> str:
    """Return bytes of files and memory as text: 8.47 MB, 23.5 GB."""
    return quantity(num_bytes, "B")


def moment(at: datetime) -> str:
    """Return a time of today as hours and minutes, an earlier one with its day; both in local time."""
    local, now = at.astimezone(), datetime.now(UTC).astimezone()
    return f"{local:%H:%M}" if local.date() == now.date() else f"{local.day} {local:%b %H:%M}"
