"""Which images the core of a model was made of, for workers: by their digests, so that none is read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from efface import files
from efface.model.core_index import CORE
from efface.model.core_index import SCHEMA as WORKSPACE
from efface.workspace.published import current

SCHEMA = "efface.core-images/1"
NAME, IN_WORKSPACE = "core-images.json", "core-records.json"


def write_core(folder: Path, core: Mapping[str, str]) -> None:
    """``core`` is digest to id, beside a model that is no workspace yet."""
    values = {"schema": SCHEMA, "digests": list(core), "ids": list(core.values())}
    files.write_json(folder / NAME, values, indent=None)


def known_core(base: Path) -> dict[str, str]:
    """Digest to id of the core's images, of a workspace or beside a model; empty where nobody says."""
    published = current(base)
    if published is None:
        return _read(base / NAME, SCHEMA)
    return _read(published.folders(base)[0] / IN_WORKSPACE, WORKSPACE)


def _read(path: Path, schema: str) -> dict[str, str]:
    if not path.is_file():
        return {}
    values = files.read_json(path, schema)
    with files.as_saved(path):
        digests, ids = (list(map(str, values[name])) for name in ("digests", "ids"))
        roles = values.get("roles", [CORE] * len(ids))
        rows = zip(digests, ids, roles, strict=True)
        return {digest: record_id for digest, record_id, role in rows if role == CORE}
