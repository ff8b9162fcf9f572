"""The history of trials in DuckDB: store, migrations, inbox, exports. The only package with duckdb."""

from engine.history.inbox import take_inbox, write_inbox
from engine.history.store import History
from engine.history.trials import ModelIdentity, TrialRecord, TrialSummary

__all__ = ["History", "ModelIdentity", "TrialRecord", "TrialSummary", "take_inbox", "write_inbox"]
