"""Pool of worker processes behind one object: pool, job queue, routing, CPU placement, messages, worker program."""
