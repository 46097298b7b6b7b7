"""Getting data sets: what there is (``catalog``), fetching (``download``), unpacking (``install``).

This is the only part of efface that opens a network connection, and only ``efface data get`` calls it.
"""
