"""What runs leave behind, and numbers from it."""
