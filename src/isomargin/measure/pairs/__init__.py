"""From vectors and labels to counts of pairs: everything whose cost grows with the square of the items."""
