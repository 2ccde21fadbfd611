"""The recipes: experiments that reproduce tables and figures of papers.

Each is a ``moiety.experiments.Experiment`` that ``moiety run NAME`` finds through the entry-point group
``moiety.recipes``. They import public names of ``moiety`` only.
"""
