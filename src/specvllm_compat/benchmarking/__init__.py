"""What extraction costs on this machine, beside the prefill that it can't be faster than.

The ``bench`` command; `samples`, `machine` and `picture` serve the scripts in ``benchmarks/`` too.
"""
