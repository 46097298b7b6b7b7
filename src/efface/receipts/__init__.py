"""Receipts: what was done for a request, signed, for people who do not trust whoever runs the model.

An in-toto Statement in a DSSE envelope, signed with Ed25519. ``check.py`` says whether one is genuine; it
loads neither torch nor numpy, and asks for nothing but the public key.
"""
