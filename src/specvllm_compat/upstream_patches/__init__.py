"""Patches for speculators that make the shims unnecessary, made from the source that is there.

Codemods find named places in speculators' files and put code of ours there; what else is in the
files keeps its form. Each patch carries the shims that it replaces and takes its facts from them.
"""
