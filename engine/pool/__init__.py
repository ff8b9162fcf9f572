"""Many processes behind one object: worker program, messages, placement, pool."""
