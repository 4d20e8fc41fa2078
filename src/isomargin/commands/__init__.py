"""The commands of `isomargin`, by what they are about; `cli.py` puts them together."""
