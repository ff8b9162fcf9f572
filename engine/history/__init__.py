"""History of trials and benchmark runs in DuckDB: store, migrations, inbox, files. The only package to use duckdb."""

from engine.history.archives.exporting import Imported, export_history, import_archive
from engine.history.inbox import INBOX, Inbox, has_arrivals, refusals, stage_kept, write_inbox
from engine.history.reading import open_to_read, write_snapshot
from engine.history.run_file import read_run, run_bytes, run_from_bytes, write_run
from engine.history.runs import Profile, Runs
from engine.history.store import History
from engine.history.trials import EngineIdentity, ModelIdentity, TrialLabel, TrialRecord, TrialSummary

__all__ = [
    "INBOX",
    "EngineIdentity",
    "History",
    "Imported",
    "Inbox",
    "ModelIdentity",
    "Profile",
    "Runs",
    "TrialLabel",
    "TrialRecord",
    "TrialSummary",
    "export_history",
    "has_arrivals",
    "import_archive",
    "open_to_read",
    "read_run",
    "refusals",
    "run_bytes",
    "run_from_bytes",
    "stage_kept",
    "write_inbox",
    "write_run",
    "write_snapshot",
]
