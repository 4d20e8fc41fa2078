"""The paper's experiments as files, and what runs them: `python -m lab`, from the root of the repository."""
