"""Other ways of running the same model, measured beside our own pool."""
