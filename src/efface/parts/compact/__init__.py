"""The compact user part: integer features, exact sums of their products, one ridge solve.

A record enters as one row of small integers (:mod:`quantiser`), training keeps only sums of
products of such rows (:mod:`statistics`), and the user weights are a function of those sums alone
(:mod:`ridge`). Taking a record out is a subtraction, and integers subtract exactly.
"""
