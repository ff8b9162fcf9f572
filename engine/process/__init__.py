"""Child processes: start-up, resource limits, logging, shutdown, and typed messages over a socket pair."""
