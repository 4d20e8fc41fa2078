"""One self-contained HTML page from one run or several."""
