"""Hooks: what has to happen to copies of the model elsewhere before a request counts as done.

An older release that still lies in a registry or a bucket is the leak. A hook brings the new one
there, takes the older ones away and looks whether they are gone; if that fails the request stays
open.
"""
