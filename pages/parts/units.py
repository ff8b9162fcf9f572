"""Number formats for people: units, thousands separators and sensible digits."""

from datetime import UTC, datetime

from engine.units import quantity


def size(num_bytes: float) -> str:
    """Return bytes of files and memory as text: 8.47 MB, 23.5 GB."""
    return quantity(num_bytes, "B")


def local_time(at: datetime) -> datetime:
    """Return the time in this machine's zone, or in UTC if it has no date there; a time without a zone is UTC."""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    try:
        return at.astimezone()
    except (OverflowError, ValueError, OSError):
        return at


def moment(at: datetime) -> str:
    """Return a time of today as hours and minutes, an earlier one with its day; both in local time."""
    local, now = local_time(at), local_time(datetime.now(UTC))
    return f"{local:%H:%M}" if local.date() == now.date() else f"{local.day} {local:%b %H:%M}"
