"""Count pairs by class and distance: everything whose cost grows with the square of the number of items."""
