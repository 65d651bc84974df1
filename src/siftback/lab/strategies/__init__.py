"""The strategies that the laboratory compares."""
