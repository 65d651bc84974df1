"""What selection would cost and save."""
