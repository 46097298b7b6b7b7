"""Models on a hub: ``push_to_hub`` puts a release there, ``from_pretrained`` opens one as data.

A hub keeps every version it was ever given, and an old version is what a request was to take away. So a push
replaces everything: files of earlier pushes are deleted, the history is squashed into one commit, and large
files that only earlier commits named are deleted for good.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from efface.errors import EffaceError
from efface.export.model_files import NAMES
from efface.export.release import export
from efface.model.mixed_linear import MixedLinear
from efface.workspace.published import load

PAPERS = ("README.md", "manifest.json", "certificate.json", "receipt.json")


def push_to_hub(
    directory: Path | str,
    repo_id: str,
    *,
    private: bool = True,
    formats: tuple[str, ...] = ("files",),
    module: nn.Module | None = None,
    license: str = "",
    api: Any = None,
) -> str:
    """Put the published release of ``directory`` on a hub, in place of whatever was there; returns where.

    Copies that others have downloaded are theirs to delete. ``api`` is a ``huggingface_hub.HfApi``, by
    default one with the token that ``hf auth login`` keeps. ``license`` is for the card; none is made up.
    """
    api = _hub().HfApi() if api is None else api
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "export"
        values = export(directory, formats, folder, module=module, license=license)
        kept = {found["sha256"] for found in values["files"].values()}
        release = values["release"]
        message = "efface" if release is None else f"efface: release {release}"
        with _explained(repo_id):
            address = api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message=message, delete_patterns="*"
            )
            api.super_squash_history(repo_id, commit_message=message)
            _delete_old(api, repo_id, kept)
    return str(address)


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    """Whatever the hub says against it, with what that means for what was to be forgotten."""
    try:
        yield
    except EffaceError:
        raise
    except Exception as error:  # no network, no rights, no such name: the hub's own words say which
        raise EffaceError(
            f"{repo_id}: the push to the hub was not completed ({_first_line(error)}).",
            "see that the hub can be reached and that you may write there (`hf auth login`), and push again: "
            "until that succeeds, files of earlier releases may still be there.",
        ) from error


def _first_line(error: Exception) -> str:
    return f"{(str(error).splitlines() or [type(error).__name__])[0]:.200}"


def _delete_old(api: Any, repo_id: str, kept: set[str]) -> None:
    """For good, what this release does not have: squashed commits leave large files behind."""
    stored = list(api.list_lfs_files(repo_id))
    old = [found for found in stored if not {found.file_oid, found.oid} & kept]
    if old and len(old) == len(stored):
        raise EffaceError(
            f"{repo_id}: the hub lists large files, and none of them by the digest of one just sent.",
            "look there which are of earlier releases, and delete those by hand.",
        )
    if old:
        api.permanently_delete_lfs_files(repo_id, old)


def from_pretrained(
    name: Path | str,
    *,
    revision: str | None = None,
    module: nn.Module | None = None,
    device: str | None = None,
) -> MixedLinear:
    """A model to predict with, from a folder or, if there is none of that name, from a hub (OWNER/NAME).

    Files are data: JSON and safetensors are read and checked against their digests, and no code that they
    name is run; ``module`` is the network of a model made of code of yours. It cannot forget: it is a copy,
    without anybody's rows. Whoever has the workspace can, and publishes the next one. ``device`` is where its
    network is computed, the CPU by default.
    """
    folder = Path(name)
    if not folder.is_dir():
        folder = _fetched(str(name), revision)
    return load(folder, module=module, device=device)


def _fetched(name: str, revision: str | None) -> Path:
    hub = _hub()
    try:
        found = hub.snapshot_download(name, revision=revision, allow_patterns=[*NAMES, *PAPERS])
    except Exception as error:  # no network, no such name, no rights: the hub's own words say which
        raise EffaceError(
            f"{name!r} is no folder, and cannot be fetched from the hub ({_first_line(error)}).",
            "give a folder that `efface export --files` wrote, or OWNER/NAME of one on the hub.",
        ) from error
    return Path(found)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise EffaceError(
            f"huggingface_hub is not installed ({error}).", "pip install 'efface[hf]'."
        ) from error
    return huggingface_hub
