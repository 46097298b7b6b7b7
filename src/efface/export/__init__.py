"""A release for other programs: ONNX, torch, numpy, or the model's own files with a card, for a hub.

What is written is a copy, and a copy does not forget: it has to be replaced after each release. The manifest
beside it says which release it is, and what it was checked against.
"""
