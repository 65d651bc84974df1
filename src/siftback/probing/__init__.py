"""Measuring the costs and savings of selection."""
