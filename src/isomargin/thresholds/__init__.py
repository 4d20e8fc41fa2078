"""Which threshold to put into production, and how far to trust it: works from an Evaluation, never from vectors."""
