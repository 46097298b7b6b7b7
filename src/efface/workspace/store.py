"""The files of a workspace: what is there, and how a release and its private state are written.

Nothing here decides when a file counts: that is ``protocol.py``'s part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from efface import __version__, files
from efface.activations import ActivationCache
from efface.apriori import RequestHistory
from efface.certificates import (
    Certificate,
    Difference,
    ExactCertificate,
    Given,
    Guarantee,
    ShiftCertificate,
)
from efface.compact.statistics import Statistics
from efface.compact.user import CompactUser
from efface.core_index import SCHEMA as CORE_RECORDS_SCHEMA
from efface.core_index import CoreIndex
from efface.forgetting import require_model_data
from efface.ledger import Journal, Step, reach, sync_directory
from efface.looks import looks_of
from efface.model import CURRENT, CURRENT_SCHEMA, MixedLinear
from efface.records import Records
from efface.stored_rows import bucket_names
from efface.tangent.user import TangentUser
from efface.training_set import ROWS as ROWS_INDEX
from efface.training_set import TrainingSet
from efface.workspace.disk import file_digest, remove

SCHEMA = "efface.workspace/2"
STATE_SCHEMA = "efface.state/1"
GUARANTEE_SCHEMA = "efface.guarantee/1"
CERTIFICATE_SCHEMA = "efface.certificate/1"
MANIFEST_SCHEMA = "efface.manifest/1"
STAGING, ROWS = "staging", "rows"  # folders in private/, beside that of the release
STATE = "state.safetensors"  # weights without noise
OWNERS_KEY = "owners.key"  # in private/: that of the hashes of core records' owners
LASTING = (ROWS, OWNERS_KEY)  # in private/, whatever the release


class Store:
    """The directory of one model, read and written file by file."""

    def __init__(self, path: Path | str, module: nn.Module | None = None) -> None:
        self.path, self.module = Path(path), module
        self.journal = Journal(self.path / "journal.jsonl")
        self._held: TrainingSet | None = None

    # --- what is there ----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Of the published release."""
        return int(files.read_json(self.path / CURRENT, CURRENT_SCHEMA)["release"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        return files.read_json(self.path / "model.json", SCHEMA)

    @property
    def data(self) -> TrainingSet:
        """The training records without images, and their rows; activations are in ``cache``."""
        if self._held is not None:
            return self._held
        return TrainingSet.load(self._private(self.number), self.settings["classes"], self._buckets)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Read ``data`` once for all that happens within; nobody else may change the workspace."""
        self._held = self.data
        try:
            yield
        finally:
            self._held = None

    @property
    def records(self) -> Records:
        """The user records that are retained, without their images."""
        return self.data.records

    @property
    def core_index(self) -> CoreIndex:
        """Who and what is in core, and what bases and scales came from."""
        values = files.read_json(self.path / "core-records.json", CORE_RECORDS_SCHEMA)
        key = bytes.fromhex(files.read_text(self.path / "private" / OWNERS_KEY))
        return CoreIndex.from_dict(values, key)

    @property
    def guarantee(self) -> Guarantee | None:
        """What later requests promise, if that has been planned (tangent)."""
        path = self.path / "guarantee.json"
        if not path.is_file():
            return None
        values = files.read_json(path, GUARANTEE_SCHEMA)
        return Guarantee(**{f.name: values[f.name] for f in fields(Guarantee) if f.name in values})

    @property
    def shifts(self) -> tuple[float, ...]:
        """Bounds on the shifts of the noisy releases so far, for composition."""
        path = self._private(self.number) / "state.json"
        return tuple(files.read_json(path, STATE_SCHEMA)["shifts"])

    @property
    def history(self) -> RequestHistory:
        """What the paper's theorem needs of the noisy releases so far."""
        values = files.read_json(self._private(self.number) / "state.json", STATE_SCHEMA)
        stored = values.get("history", {"num_requests": len(values["shifts"])})
        return RequestHistory(**stored)

    @property
    def certificate(self) -> Certificate | None:
        """Of the published release; None where nothing was promised (tangent, before any request)."""
        path = self.path / "certificates" / f"{self.number}.private.json"
        if not path.is_file():
            return None
        return certificate_of(files.read_json(path, CERTIFICATE_SCHEMA), self.shifts)

    @property
    def cache(self) -> ActivationCache | None:
        values = self.settings["activations"]
        return None if values is None else ActivationCache(self.path / "activations", **values)

    @property
    def forgotten(self) -> set[str]:
        """Content digests of what was forgotten: all that is kept of it."""
        return self.journal.forgotten()

    def model(self) -> MixedLinear:
        """The published model with its training data and private state, ready to forget in memory.

        To predict, ``MixedLinear.load(path)`` is enough. Hold the lock if requests may be running.
        """
        model = MixedLinear.load(self.path, module=self.module, cache=self.cache)
        data, private = self.data, self._private(self.number)
        model.guarantee, model.shifts = self.guarantee, self.shifts
        model.history, model.index = self.history, self.core_index
        if isinstance(model.user, CompactUser):
            tensors = files.read_tensors(private / "statistics.safetensors")
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            model.user.statistics = Statistics.from_arrays(arrays)
        else:
            assert model.cache is not None
            data = replace(data, activations=model.cache.rows(data.digests))
            if (private / STATE).is_file():  # else it is the release
                state = files.read_tensors(private / STATE)["state"]
                model.user.state = state.clone()  # not a map of a file that will be deleted
        model.data = data
        return model

    def strays(self) -> list[Path]:
        """What a finished request does not leave behind: intents, half-made and old files."""
        number = str(self.number)
        found = [self.path / "pending.json", *self.path.glob("*.tmp")]
        for folder in ("releases", "private"):
            found += [p for p in (self.path / folder).iterdir() if p.name not in (number, *LASTING)]
        found += self._unused_buckets()
        for path in (self.path / "certificates").iterdir():
            made_for = path.name.split(".")[0]
            if path.suffix == ".tmp" or (made_for.isdigit() and int(made_for) > int(number)):
                found.append(path)
        return sorted(path for path in found if path.exists())

    def forbidden(self) -> list[Path]:
        """Weights without noise where the certificate says that none are kept: there must be none."""
        certificate, path = self.certificate, self._private(self.number) / STATE
        noisy = isinstance(certificate, ShiftCertificate) and certificate.keeps_no_secret
        return [path] if noisy and path.exists() else []

    def settled(self) -> bool:
        """Whether no request is running or was cut short."""
        entries = self.journal.entries()
        ended = bool(entries) and entries[-1].step in (Step.DONE, Step.ABORTED)
        return ended and not self.strays()

    # --- what a release writes --------------------------------------------------------------------

    def _private(self, number: int) -> Path:
        return self.path / "private" / str(number)

    @property
    def _buckets(self) -> Path:
        """The folder of the rows: releases share the files that do not change."""
        return self.path / "private" / ROWS

    def _bucket_names(self, number: int) -> list[str]:
        index = self._private(number) / ROWS_INDEX
        return bucket_names(index) if index.is_file() else []

    def _unused_buckets(self) -> list[Path]:
        """Rows that are not the published release's."""
        if not self._buckets.is_dir():
            return []
        used = set(self._bucket_names(self.number))
        return [path for path in self._buckets.iterdir() if path.name not in used]

    def _remove_unused_buckets(self) -> None:
        for path in self._unused_buckets():
            remove(path)
        if self._buckets.is_dir():
            sync_directory(self._buckets)

    def _discard(self, number: int) -> None:
        """Delete the half-made files of a release that was never published."""
        remove(self.path / "releases" / str(number))
        remove(self._private(number))
        for path in (self.path / "certificates").glob(f"{number}.*"):
            remove(path)
        self._remove_unused_buckets()

    def _write(self, number: int, model: MixedLinear, certificate: Certificate | None) -> None:
        """All files of a release, on disk but not yet served."""
        model.save_user(self.path / "releases" / str(number))
        reach(Step.RELEASE)
        self._write_private(number, model)
        reach(Step.PRIVATE)
        if certificate is not None:
            folder = self.path / "certificates"
            for form, values in (
                ("private", certificate.private()),
                ("public", certificate.public()),
            ):
                named = {"schema": CERTIFICATE_SCHEMA, **values}
                files.write_json(folder / f"{number}.{form}.json", named)
            sync_directory(folder)
        reach(Step.CERTIFICATE)
        values = {"schema": MANIFEST_SCHEMA, "files": self._file_digests(number)}
        files.write_json(self._private(number) / "manifest.json", values)
        for folder in (self._private(number), self.path / "releases" / str(number)):
            sync_directory(folder)
            sync_directory(folder.parent)

    def _write_private(self, number: int, model: MixedLinear) -> None:
        private, data = self._private(number), require_model_data(model.data)
        data.save(private, self._buckets)
        if data.rows is not None:
            sync_directory(self._buckets)
        if isinstance(model.user, CompactUser):
            assert model.user.statistics is not None
            arrays = model.user.statistics.to_arrays()
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            files.write_tensors(private / "statistics.safetensors", tensors)
        elif not torch.equal(model.user.state, model.user.weights):
            files.write_tensors(private / STATE, {"state": model.user.state})
        history = asdict(model.history)
        values = {"schema": STATE_SCHEMA, "shifts": model.shifts, "history": history}
        files.write_json(private / "state.json", values)

    def _file_digests(self, number: int) -> dict[str, str]:
        paths = [*(self.path / "releases" / str(number)).iterdir()]
        paths += [p for p in self._private(number).iterdir() if p.name != "manifest.json"]
        paths += (self.path / "certificates").glob(f"{number}.*")
        made = {str(path.relative_to(self.path)): file_digest(path) for path in sorted(paths)}
        named = (self._buckets / name for name in self._bucket_names(number))
        return made | {str(path.relative_to(self.path)): path.stem for path in named}

    def _stage(self, part: TrainingSet) -> None:
        folder = self.path / "private" / STAGING
        remove(folder)
        part.save(folder, folder / ROWS)
        if part.activations is not None:
            rows = part.activations[slice(0, len(part))]
            files.write_tensors(folder / "activations.safetensors", {"activations": rows})
        sync_directory(folder)
        sync_directory(folder.parent)

    def _staged(self) -> TrainingSet:
        folder = self.path / "private" / STAGING
        part = TrainingSet.load(folder, self.settings["classes"], folder / ROWS)
        if (folder / "activations.safetensors").is_file():
            tensors = files.read_tensors(folder / "activations.safetensors")
            part = replace(part, activations=tensors["activations"])
        return part

    def _save_guarantee(self, guarantee: Guarantee) -> None:
        values = {"schema": GUARANTEE_SCHEMA, **asdict(guarantee)}
        files.write_json(self.path / "guarantee.json", values)
        sync_directory(self.path)

    # --- what is written once ---------------------------------------------------------------------

    def _settings_of(self, model: MixedLinear) -> dict[str, Any]:
        core, tangent = model.core, isinstance(model.user, TangentUser)
        if tangent and model.guarantee is None and core.records is not None and len(core.records):
            model.plan()
        shape = {"prefix_digest": core.prefix_digest, "shape": core.boundary_shape}
        return {
            "schema": SCHEMA,
            "version": __version__,
            "user": model.user.kind,
            "classes": list(model.classes),
            "core_digest": core.digest,
            "activations": shape if tangent else None,
            "num_weights": model.user.operator.d if tangent else None,
            "sigma": None if model.guarantee is None else model.guarantee.sigma,
        }

    def _write_core_records(self, model: MixedLinear, data: TrainingSet) -> None:
        sets = (model.core.records, data.replay, model.calibrated_on)
        known = {record.digest: record for records in sets for record in records or ()}
        looks = dict(zip(known, looks_of(known.values()), strict=True))
        index = CoreIndex.of(sets[:2], model.calibrated_on, looks=looks)
        files.write_bytes(self.path / "private" / OWNERS_KEY, index.key.hex().encode())
        (self.path / "private" / OWNERS_KEY).chmod(0o600)
        files.write_json(self.path / "core-records.json", index.to_dict(), indent=None)

    def _fill_cache(self, data: TrainingSet, batch_size: int = 256) -> None:
        cache, rows = self.cache, data.activations
        if cache is None or rows is None:
            return
        digests = data.digests
        for start in range(0, len(digests), batch_size):
            part = slice(start, start + batch_size)
            cache.put(digests[part], rows[part])


def first_certificate(model: MixedLinear, data: TrainingSet) -> Certificate | None:
    """Of a model that has forgotten nothing: its sums' digest, for others to compare with."""
    if not isinstance(model.user, CompactUser):
        return None
    residual = 0.0 if model.solution is None else model.solution.residual_norm
    digests = (model.user.statistics_digest, model.user.weights_digest)
    num, proved = len(data) if len(data.records) else 0, model.user.weights_proved
    given = model.user.given
    return ExactCertificate(*digests, num, 0, residual, weights_proved=proved, given=given)


def certificate_of(values: Mapping[str, Any], shifts: tuple[float, ...]) -> Certificate:
    """A certificate from its private form; the numbers that follow from others are computed anew."""
    kind = ExactCertificate if values["kind"] == "exact" else ShiftCertificate
    given = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    if kind is ShiftCertificate:
        given["guarantee"] = Guarantee(**given["guarantee"])
        given["earlier_shifts"] = shifts[:-1]
    elif given.get("given") is not None:
        given["given"] = Given(**given["given"])
    if kind is ExactCertificate and given.get("difference") is not None:
        stored = {f.name: given["difference"][f.name] for f in fields(Difference)}
        given["difference"] = Difference(
            **{**stored, "guarantee": Guarantee(**stored["guarantee"])}
        )
    return kind(**given)
