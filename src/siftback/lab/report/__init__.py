"""The report: one page for a reader, made from recorded comparisons and from nothing else."""
