"""Turn scores into selections."""
