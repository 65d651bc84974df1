"""Several processes: groups of them, meetings, and exchanging what they hold."""
