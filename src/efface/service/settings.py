"""The settings of the service: one TOML file, every value with a default that is safe.

    public_url = "https://privacy.example.com"

    [batch]
    window_seconds = 3600      # requests that come within it become one release
    minimum = 10               # … and wait for so many people, but never beyond their deadline

    [[hooks]]
    kind = "folder"
    path = "/srv/model"

Secrets are not in it but in files that it names.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from efface.errors import EffaceError
from efface.report.language import Language


class SettingsSection(BaseModel):
    """Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BatchSettings(SettingsSection):
    """When the requests that wait are carried out, all of them in one step."""

    window_seconds: float = Field(default=2.0, ge=0)
    minimum: int = Field(default=1, ge=1)  # people
    largest: int = Field(default=1000, ge=1)  # requests
    margin_days: float = Field(
        default=5.0, ge=0, le=30
    )  # before the deadline nobody waits any longer


class LimitSettings(SettingsSection):
    body_bytes: int = Field(default=64 * 1024, ge=1024)
    image_bytes: int = Field(default=10 * 1024 * 1024, ge=1024)
    per_minute: int = Field(default=600, ge=1)  # requests of one key
    strangers_per_minute: int = Field(default=60, ge=1)  # from one address without a key


class OpenDsrSettings(SettingsSection):
    """The key and certificate that replies are signed with; without them OpenDSR is off."""

    key: Path
    certificate: Path
    domain: str
    controller_id: str = "controller"


class MetaSettings(SettingsSection):
    app_secret_file: Path
    identity_type: str = "meta_user_id"  # in the mapping file


class CallbackSettings(SettingsSection):
    """Which hosts may be called. https to a public address always; anything else only if it is listed."""

    hosts: tuple[str, ...] = ()
    timeout_seconds: float = Field(default=10.0, gt=0)
    attempts: int = Field(default=12, ge=1)
    backoff_seconds: float = Field(default=5.0, gt=0)  # doubled with each attempt


class EvaluationSettings(SettingsSection):
    data: str  # as `efface evaluate` takes it; its test records


class FolderHookSettings(SettingsSection):
    kind: Literal["folder"]
    path: Path


class StoreHookSettings(SettingsSection):
    kind: Literal["store"]
    url: str  # any that fsspec knows: s3://bucket/model, gs://…, memory://…


class CommandHookSettings(SettingsSection):
    kind: Literal["command"]
    argv: tuple[str, ...] = Field(min_length=1)  # {model} and {release} are filled in
    timeout_seconds: float = Field(default=600.0, gt=0)


class MlflowHookSettings(SettingsSection):
    kind: Literal["mlflow"]
    tracking_uri: str
    model: str
    alias: str = "production"


HookSettings = Annotated[
    FolderHookSettings | StoreHookSettings | CommandHookSettings | MlflowHookSettings,
    Field(discriminator="kind"),
]


class ServiceSettings(SettingsSection):
    public_url: str = "http://127.0.0.1:8000"
    ledger: str | None = None  # a PostgreSQL URL; by default the workspace's own
    user_part_only: bool = False  # forget somebody's user images though core has others
    identities: Path | None = None
    signing_key: Path | None = None  # `efface keys new`: then receipts are signed
    language: Language = Language.ENGLISH  # of the pages for a request's papers
    retry_seconds: float = Field(
        default=30.0, gt=0
    )  # after a step or a hook failed; doubled with each attempt
    lease_seconds: float = Field(default=15.0, gt=0)
    batch: BatchSettings = BatchSettings()
    limits: LimitSettings = LimitSettings()
    callbacks: CallbackSettings = CallbackSettings()
    opendsr: OpenDsrSettings | None = None
    meta: MetaSettings | None = None
    evaluation: EvaluationSettings | None = None
    hooks: tuple[HookSettings, ...] = ()

    @classmethod
    def read(cls, path: Path | None) -> ServiceSettings:
        """From a TOML file; relative paths in it are relative to it."""
        if path is None:
            return cls()
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
            return _placed(cls.model_validate(values), path.parent)
        except OSError as problem:
            raise EffaceError(f"{path} cannot be read.", "check the path.") from problem
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise EffaceError(f"{path} is not TOML: {problem}.", "mend it.") from problem
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise EffaceError(f"{path}: {where}: {first['msg']}.", "mend it.") from problem


def _placed(settings: ServiceSettings, folder: Path) -> ServiceSettings:
    """The same with every path below ``folder``, unless it is absolute."""

    def placed(section: BaseModel) -> BaseModel:
        changes: dict[str, Any] = {}
        for name in type(section).model_fields:
            value = getattr(section, name)
            if isinstance(value, Path):
                changes[name] = folder / value
            elif isinstance(value, BaseModel):
                changes[name] = placed(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
                changes[name] = tuple(placed(item) for item in value)
        return section.model_copy(update=changes)

    result = placed(settings)
    assert isinstance(result, ServiceSettings)
    return result
