"""The fixtures of workspaces: small buckets, and no waiting for the disk."""

from tests.workspaces import as_in_other_processes, made

__all__ = ["as_in_other_processes", "made"]
