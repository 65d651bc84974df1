"""Tables of values per example, in memory, in files and in shards."""
