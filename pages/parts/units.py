"""Numbers as they are read: with units, thousands separators and sensible digits."""

from datetime import UTC, datetime


def size(num_bytes: float) -> str:
    """Bytes as MB or GB (powers of ten)."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"


def mebibytes(num_bytes: float) -> str:
    """Bytes as MiB, the unit in which memory is reckoned up."""
    return f"{num_bytes / (1 << 20):,.0f} MiB"


def parameters(count: int) -> str:
    """A model's number of parameters: 5.9 M, 1.1 B."""
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def moment(at: datetime) -> str:
    """A time of today as hours and minutes, an earlier one with its day; both in local time."""
    local, now = at.astimezone(), datetime.now(UTC).astimezone()
    return f"{local:%H:%M}" if local.date() == now.date() else f"{local.day} {local:%b %H:%M}"
