"""The fixtures of this room: a workspace of each kind, and no waiting for the disk."""

from tests.workspaces import as_in_other_processes, kind, made, path, undisturbed

__all__ = ["as_in_other_processes", "kind", "made", "path", "undisturbed"]
