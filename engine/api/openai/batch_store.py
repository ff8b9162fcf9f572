"""Batches on disk: each is a folder with its state and, until it is over, the output so far."""

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from engine.api.openai.batch_output import ERRORS, OUTPUT, Output
from engine.api.openai.errors import ApiError
from engine.api.openai.file_store import FileStore, make_private
from engine.api.openai.paging import Page
from engine.api.openai.responses import Batch
from engine.errors import quoted
from engine.files import decoded_json, open_locked, read_regular, write_private

BATCH_ID = re.compile("batch_[0-9a-f-]{36}")
MOST_BATCHES, MOST_OPEN = 1_000, 100
"""Batches kept, of which the oldest that are over are forgotten first; those that are not over."""
MOST_STATE_BYTES = 1 << 18
Ending = Literal["completed", "failed", "cancelled"]
STATE, LOCK = "batch.json", "lock"
OVER = frozenset({"completed", "failed", "cancelled"})


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch, and what its client does not see. client: its name for the queue; model_hash: of the model that answers.

    output_id, error_id: of the files that it becomes; ending: how it ends, once nothing is added to its output.
    """

    batch: Batch
    client: str
    output_id: str
    error_id: str
    model_hash: str = ""
    ending: Ending | None = None

    @property
    def is_over(self) -> bool:
        """True once it will not change any more."""
        return self.batch.status in OVER


class BatchStore:
    """Batches in the folder of the files. All methods read or write the disk and may raise OSError."""

    def __init__(self, files: FileStore) -> None:
        self._files, self._folder = files, files.folder

    def lock(self) -> BinaryIO:
        """Return the lock of the process that runs the batches, held until it is closed. Raises BlockingIOError."""
        make_private(self._folder)
        return open_locked(self._folder / LOCK)

    def read(self, id: str) -> Record:
        """Return a batch. Raises ApiError where there is none, or its state is damaged."""
        try:
            return decoded_json(read_regular(self._of(id) / STATE, MOST_STATE_BYTES), Record)
        except FileNotFoundError:
            raise _unknown(id) from None
        except ValueError as error:
            text = f"The state of the batch {id} is damaged ({error})."
            raise ApiError(500, text, type="server_error") from None

    def save(self, record: Record) -> None:
        """Write the state of a batch."""
        make_private(self._of(record.batch.id))
        write_private(self._of(record.batch.id) / STATE, msgspec.json.encode(record))

    def page(self, page: Page) -> tuple[list[Record], bool]:
        """Return the batches of a page, those that are damaged left out, and whether more follow."""
        found: list[Record] = []
        for id in page.rest(self._ids()):
            with suppress(ApiError):
                found.append(self.read(id))
            if len(found) > page.limit:
                break
        return found[: page.limit], len(found) > page.limit

    def open_ones(self) -> list[Record]:
        """Return the batches that are not over, oldest first."""
        found = []
        for id in sorted(self._ids()):
            with suppress(ApiError):
                record = self.read(id)
                found += [] if record.is_over else [record]
        return found

    def output(self, record: Record) -> Output:
        """Open the output of a batch, to append to it."""
        return Output(self._of(record.batch.id), self._files)

    def publish(self, record: Record) -> tuple[str | None, str | None]:
        """Make the output of a batch files, and return their ids, None for a file without a line."""
        batch = record.batch
        ids = {OUTPUT: record.output_id, ERRORS: record.error_id}
        counts = {OUTPUT: batch.request_counts.completed, ERRORS: batch.request_counts.failed}
        for kind, id in ids.items():
            made = self._of(batch.id) / kind
            if counts[kind] and made.is_dir():  # else the file was made before the process was killed
                self._files.adopt(made, id, f"{batch.id}_{kind}.jsonl", "batch_output")
            shutil.rmtree(made, ignore_errors=True)
        return tuple(id if counts[kind] else None for kind, id in ids.items())  # type: ignore[return-value]

    def forget_old(self) -> None:
        """Forget the oldest batches that are over, beyond as many as are kept; their files stay."""
        ids = sorted(self._ids())
        for id in ids[: max(len(ids) - MOST_BATCHES, 0)]:
            with suppress(ApiError):
                if self.read(id).is_over:
                    shutil.rmtree(self._of(id), ignore_errors=True)

    def _ids(self) -> Iterator[str]:
        found = self._folder.glob("batch_*")
        return (folder.name for folder in found if BATCH_ID.fullmatch(folder.name))

    def _of(self, id: str) -> Path:
        if not BATCH_ID.fullmatch(id):
            raise _unknown(id)
        return self._folder / id


def _unknown(id: str) -> ApiError:
    return ApiError(404, f"There is no batch {quoted(id)}.", param="id", code="batch_not_found")
