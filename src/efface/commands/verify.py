"""``efface verify``: check a workspace against its certificate, its ledger and itself; or a receipt."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import Mode, mode_for, show
from efface.commands.output import (
    AbsolutePaths,
    DeviceName,
    JsonFlag,
    TrustModule,
    cell,
    finish,
    plain,
    table,
    warn,
)
from efface.errors import EffaceError

if TYPE_CHECKING:
    from rich.console import Console

    from efface.guarantee.check import Check
    from efface.receipts.check import Stamped

EXAMPLES = """\
Example: [bold]efface verify model[/bold]

Example: [bold]efface verify model --retrain --from-images photos/[/bold]

Example: [bold]efface verify receipt.json --key signing.key.pub[/bold]

Example: [bold]efface verify receipt.json --key signing.key.pub --workspace model --retrain[/bold]

Example: [bold]efface verify receipt.json --key k.pub --timestamp receipt.tsr --tsa-cert tsa.pem[/bold]"""

KEY = "The public keys (FILE.pub) of whoever signed the receipt."
LEDGER = "The ledger that the receipt must stand in: ledger.sqlite, or its rows as ledger.jsonl."
STAMP = "The time stamp of the receipt (FILE.tsr), as an authority gave it (efface timestamp)."
AUTHORITY = "With --timestamp: the authority's certificate, or its issuer's, as PEM."
MODEL = "The model that the receipt must be about; it is checked as well."

STATES = {
    True: "[green]ok[/green]",
    None: "[yellow]cannot[/yellow]",
    False: "[bold red]fails[/bold red]",
}


def verify(
    what: Annotated[Path, typer.Argument(help="A folder written by `efface train`, or a receipt.")],
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Compute the sums, or the gradient, from the rows.")
    ] = False,
    from_images: Annotated[
        str | None, typer.Option(help="Compute the rows from this data's images, and compare.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help=KEY)] = None,
    ledger: Annotated[Path | None, typer.Option(help=LEDGER)] = None,
    workspace: Annotated[Path | None, typer.Option(help=MODEL)] = None,
    timestamp: Annotated[Path | None, typer.Option(help=STAMP)] = None,
    tsa_cert: Annotated[Path | None, typer.Option(help=AUTHORITY)] = None,
    absolute_paths: AbsolutePaths = False,
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Check files, ledger and certificate; exit code 4 if something does not check.

    With --retrain the compact statistics are summed again from the retained rows and must have the same
    digest; for the tangent part the gradient is computed again in float64, and epsilon from it. Where only
    noisy weights are kept (plan --state noisy) that cannot be: the noise is checked by solving again.

    A receipt is checked with the public key of whoever signed it: signature, the key's dates, the rows of the
    ledger that it quotes. With --workspace it must be about the model there, which is checked, too.
    """
    values: dict[str, Any] = {"receipt": None, "workspace": None, "release": None}
    if not what.exists():
        raise EffaceError(
            f"there is no {what}.", "give a model's folder, or the file of a receipt."
        )
    if not what.is_dir():
        checks = _of_receipt(what, key, ledger, _stamped(timestamp, tsa_cert), values)
    else:
        checks, workspace = [], workspace or what
    if workspace is not None:
        options: dict[str, Any] = {"retrain": retrain, "images": from_images}
        options |= {"absolute_paths": absolute_paths, "note": warn, "device": device}
        long = retrain or from_images is not None
        with show("verify", mode_for(as_json=json) if long else Mode.SILENT) as progress:
            options["progress"] = progress
            checks += _of_workspace(workspace, trust_module, values, **options)
    elif retrain or from_images is not None:
        raise EffaceError("only a model can be trained again.", "give --workspace MODEL, too.")
    values |= {
        "ok": all(check.ok is not False for check in checks),
        "checks": [asdict(check) for check in checks],
    }
    finish(values, as_json=json, render=lambda console: _render(console, values))
    if not values["ok"]:
        raise typer.Exit(4)


def _stamped(answer: Path | None, trusted: Path | None) -> Stamped | None:
    from efface.receipts.check import Stamped

    if answer is None and trusted is None:
        return None
    if answer is None or trusted is None:
        fix = "give --timestamp FILE.tsr and --tsa-cert FILE.pem."
        raise EffaceError("a time stamp is checked with its authority's certificate.", fix)
    return Stamped(answer, trusted)


def _of_receipt(
    path: Path,
    key: Path | None,
    ledger: Path | None,
    stamp: Stamped | None,
    values: dict[str, Any],
) -> list[Check]:
    """Without torch: who checks a receipt needs no machine learning."""
    from efface.receipts import check

    if key is None:
        fix = "give --key FILE.pub, as the signer has published it."
        raise EffaceError(f"a receipt is checked with a key, and none is given for {path}.", fix)
    checks, receipt = list(check.checks(path, key, ledger, stamp)), check.load(path, key)
    values |= {"receipt": str(path), "release": receipt.release, "signed": receipt.time}
    values |= {"subjects": dict(receipt.subjects), "not_covered": list(receipt.not_covered)}
    return checks


def _of_workspace(
    path: Path, trust_module: str | None, values: dict[str, Any], **options: Any
) -> list[Check]:
    from efface.network.backbone import trusted_module
    from efface.workspace import Workspace
    from efface.workspace.verify import all_checks, receipt_check

    opened = Workspace.open(path, module=trusted_module(trust_module), recover=False)
    subjects = values.get("subjects")
    found = [] if subjects is None else [receipt_check(opened, values["release"], subjects)]
    values |= {"workspace": str(path), "release": opened.number}
    return found + list(all_checks(opened, **options))


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("check", "", "detail")
    rows.columns[2].overflow = "fold"
    for check in values["checks"]:
        rows.add_row(check["name"], STATES[check["ok"]], cell(check["detail"]))
    console.print(rows)
    partly = any(check["ok"] is None for check in values["checks"])
    good = "all that can be checked does" if partly else "everything checks"
    verdict = good if values["ok"] else "something does not check"
    for text in values.get("not_covered", ()):
        console.print(f"not covered: {plain(text)}", markup=False, soft_wrap=True, style="dim")
    console.print(
        f"release {values['release']}: {verdict}",
        style="bold green" if values["ok"] else "bold red",
    )
