"""Arithmetic that is the same bits on every machine.

A sum depends on its order, and so on the kernel, as soon as one of its partial sums is rounded. A sum of
integers times one power of two is not rounded while it stays below 2^53 (float64): then order, fused
multiply-add, threads, instruction set and place in memory cannot matter. Everything here brings a network
to such sums (``exact_sums``, ``exact_convolution``), to single correctly rounded operations on each element
(+ − × ÷ √ of IEEE 754), and to tables (``tables``). ``exact_mode`` runs an unchanged network that way.
"""
