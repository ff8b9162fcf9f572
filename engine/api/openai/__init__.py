"""OpenAI-compatible HTTP API: other programs use the loaded model, and every call is a trial of the history."""
