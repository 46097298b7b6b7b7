"""Readers: from files as people keep them to ``Found`` rows, one layout each.

Nothing that was found is dropped without an entry in ``Records.skipped`` or ``.notes``. Data sets with a name
and a layout of their own are in ``named``.
"""
