"""The records that runs leave behind, and numbers from them."""
