"""The paper's experiments as files that can be run: which recipes, what varies, and what was published."""
