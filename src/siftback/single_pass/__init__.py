"""One forward, and a backward over the kept rows."""
