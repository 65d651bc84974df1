"""Each figure and table of the papers, from records."""
