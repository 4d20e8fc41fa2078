"""A self-contained HTML report of one run or several."""
