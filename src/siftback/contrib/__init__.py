"""Methods of the papers by which nothing was gained, kept for comparison."""
