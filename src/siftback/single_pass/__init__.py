"""One forward pass, and a backward pass over the kept rows."""
