"""One cell at a time: its workers, its requests, its metrics, and what else the machine did meanwhile."""
