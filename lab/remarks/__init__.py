"""Remarks of the paper, each with a small experiment of its own: ``python -m lab.remarks NAME``.

``margins`` reads the stored grids of TCM's margins. ``label-noise`` and ``shift`` train linear heads on frozen
features. ``floor`` simulates classes that are all alike. docs/remarks.md is filled from what they write into
results/remarks.
"""
