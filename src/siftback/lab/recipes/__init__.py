"""Experiments of the papers, each a TOML file in this folder, at two scales."""
