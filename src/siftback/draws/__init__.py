"""Draws of examples by their values: exact, by percentile, by ratio, in blocks and in shards."""
