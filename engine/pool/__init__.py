"""Pool of worker processes behind one object: pool, job queue, routing, messages, worker program."""
