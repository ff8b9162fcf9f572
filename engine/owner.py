"""Owner process of a resource, distinguished from its forks, which hold copies of everything it holds."""

import os

from engine.errors import PoolClosed


class OwnerProcess:
    """The process that created this object. A fork may read what the owner holds but must not shut any of it down."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """False in a fork."""
        return os.getpid() == self._pid

    def check_pool(self) -> None:
        """Raise PoolClosed in a fork, which lacks the threads that a pool needs."""
        if not self.is_this:
            raise PoolClosed(f"this pool belongs to process {self._pid}, which was forked: open a new one here")
