"""``efface audit``: is it really forgotten? A model after a request, read out and attacked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.forget import WorkspacePath
from efface.commands.output import JsonFlag, TrustModule, finish, plain, table
from efface.errors import EffaceError, GuaranteeError
from efface.progress import Progress, mode_for, part, show

if TYPE_CHECKING:
    from rich.console import Console

    from efface.audit.study import Settings
    from efface.data.records import Records
    from efface.workspace import Workspace

EXAMPLES = """\
Example: [bold]efface audit model digits --owner u07[/bold]

Example: [bold]efface audit model photos/ --id train/anna/17.jpg --worlds 0 --json[/bold]"""

OUT = "Folder for report.html, audit.json and the cache of finished parts."


def audit(
    workspace: WorkspacePath,
    data: Annotated[str, typer.Argument(help="Where the forgotten records still are, and tests.")],
    owner: Annotated[list[str] | None, typer.Option(help="A person; repeatable.")] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", help="A record; repeatable.")] = None,
    worlds: Annotated[
        int, typer.Option(min=0, help="Models for the per-sample attacks; 0: none.")
    ] = 24,
    canaries: Annotated[int, typer.Option(min=0, help="Of the one-run audit; 0: none.")] = 200,
    seed: Annotated[int, typer.Option(help="Of all random choices.")] = 0,
    out: Annotated[Path, typer.Option(help=OUT)] = Path("efface-audit"),
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Compare a model with one retrained without some records, and attack it and its method.

    The workspace is only read. Exit code 3 if the records are still in the model, or if something that was
    measured contradicts the certificate.
    """
    from efface.audit.study import Settings
    from efface.network.backbone import trusted_module
    from efface.workspace import Workspace

    opened = Workspace.open(workspace, module=trusted_module(trust_module), recover=False)
    with show("audit", mode_for(as_json=json)) as progress:
        asked, test = read(opened, data, owner, id_)
        settings = Settings(seeds=1, worlds=worlds, canaries=canaries, seed=seed)
        values = run(opened, asked, test, settings, out, progress, owners=owner or ())
    finish(values, as_json=json, render=lambda console: _render(console, values))
    if not values["ok"]:
        raise typer.Exit(3)


def run(
    workspace: Workspace,
    asked: Records,
    test: Records,
    settings: Settings,
    out: Path,
    progress: Progress | None = None,
    *,
    owners: Sequence[str] = (),
) -> dict[str, Any]:
    """Audit a workspace; writes ``audit.json`` and ``report.html`` into ``out``.

    ``owners`` are looked for in core too, by their keyed hashes, and so are the images of ``asked``.
    """
    from dataclasses import asdict, replace

    from efface import files
    from efface.audit.differencing import identify_in
    from efface.audit.influence import influence_left, strongest
    from efface.audit.methods import REFERENCE, UNTOUCHED, own_method
    from efface.audit.served import hold, promised_sigma, scene_of, served_weights
    from efface.audit.study import SCHEMA, Reader, Study, identity_of
    from efface.report.audit import audit_report

    model, certificate = workspace.model(), workspace.certificate
    weights = served_weights(model)
    present = sum(d in set(workspace.records.digests) for d in asked.digests)
    in_core, core_digests = _in_core(workspace, asked, owners), workspace.core_index.digests
    asked = asked.where(lambda record: record.digest not in core_digests)
    if not len(asked):
        fix = "train again without them: there is no user part of them to audit."
        raise GuaranteeError("all of these images are core data, which is never forgotten.", fix)
    scene = scene_of(model, asked, test, certificate)
    own = own_method(scene.kind).name
    identity = identity_of(str(workspace.number), model.core.digest, asked.digests, test.digests)
    study = Study(
        scene,
        replace(settings, methods=(UNTOUCHED, REFERENCE, own)),
        request=scene.forget,
        cache=out / "cache",
        identity=identity,
    )
    values = study.run(part(progress, 0.0, 0.9))
    reader = Reader(scene, study.trained, study._relearn(0))
    spoken = None if present else certificate  # it is not about records that are still in
    held = hold(scene, weights, study.trained, reader.retrained, spoken)
    values["served"] = {
        "readouts": reader.values(weights, weights),
        "held": None if held is None else asdict(held),
        "num_still_in": present,
        "num_in_core": in_core,
    }
    sigma = promised_sigma(certificate)
    left = influence_left(scene, weights, study.trained, reader.retrained, sigma)
    values["served"]["influence"] = asdict(left) | {"found": left.found}
    attack = strongest(values["methods"][own])
    values["headline"] = {"influence": left.share, "attack": attack}
    shown = identify_in(scene, study.trained, weights)
    values["differencing"] = asdict(shown) | {"by_chance": shown.by_chance}
    kept = held is None or held.kept
    values |= {"workspace": str(workspace.path), "release": workspace.number}
    values["ok"] = not (
        present or in_core or left.found or not kept or bool(values["contradictions"])
    )
    values["report"] = str(out / "report.html")
    files.write_json(out / "audit.json", {"schema": SCHEMA, **values})
    command = f"efface audit {workspace.path} DATA"
    audit_report(values, f"Audit of release {workspace.number}", command).write(out / "report.html")
    return values


def _in_core(workspace: Workspace, asked: Records, owners: Sequence[str]) -> int:
    """How many images of these people, or of these records, are core data."""
    from efface.model.request import Request

    index, digests = workspace.core_index, set(asked.digests)
    named = {name for owner in owners for name in index.matching(Request.of(owner=owner))}
    shown = {record.id for record in index.records if record.digest in digests}
    return len(named | shown)


def read(
    workspace: Workspace, data: str | Records, owner: list[str] | None, ids: list[str] | None
) -> tuple[Records, Records]:
    """The records in question, with the model's classes, and the test records."""
    from efface.audit.served import beside
    from efface.data.record import Split
    from efface.data.records import Records

    if (owner is None) == (ids is None):
        raise EffaceError("whose records?", "give --owner or --id, either repeated as needed.")
    found = Records.open(data) if isinstance(data, str) else data
    mine = found.where(lambda record: record.split is not Split.TEST)
    asked = mine.select(owner=owner) if owner is not None else found.select(ids=ids)
    classes = workspace.settings["classes"]
    if not len(asked) or not len(found.test):
        raise EffaceError(
            f"{data} holds {len(asked)} of these records and {len(found.test)} test records.",
            "an audit needs both; check the spelling and the split.",
        )
    return beside(Records(asked, classes)), Records(found.test, classes)


def _render(console: Console, values: dict[str, Any]) -> None:
    from efface.audit.methods import REFERENCE, UNTOUCHED, own_method

    served, methods = values["served"], values["methods"]
    for line in headline(values):
        console.print(line, style="bold", soft_wrap=True)
    rows = table("readout", "served", "retrained", "original", right=(1, 2, 3))
    for key, value in served["readouts"].items():
        shown = [methods[name]["readouts"][key]["mean"] for name in (REFERENCE, UNTOUCHED)]
        rows.add_row(key.replace("_", " "), *(f"{v:.4g}" for v in (value, *shown)))
    console.print(rows)
    rows = table("attack", "game", "AUC", "by chance", "ε ≥", right=(2, 3, 4))
    own = own_method(values["user"]).name
    for game in ("canary", "attacks"):
        for name, v in methods[own][game].items():
            chance = f"{v['chance'][0]:.2f}–{v['chance'][1]:.2f}"
            note = "" if v["covered"] else " (not covered)"
            rows.add_row(name + note, game, f"{v['auc']:.3f}", chance, f"{v['epsilon_bound']:.2f}")
    console.print(rows)
    console.print(difference_text(values["differencing"]), soft_wrap=True)
    for line in _verdicts(values):
        console.print(line, style="bold red", soft_wrap=True)
    if values["ok"]:
        console.print("nothing here contradicts the certificate", style="bold green")
    console.print(f"report: {plain(values['report'])}", style="bold", markup=False, soft_wrap=True)


def headline(values: dict[str, Any]) -> list[str]:
    """The strongest attacks: on the served weights themselves, and on the method in many worlds."""
    left, best = values["served"]["influence"], values["headline"]["attack"]
    lines = [
        f"of the forgotten records' influence {left['share']:.1e} is left in the served weights "
        f"(what can be told from rounding or noise: {left['resolution']:.0e})"
    ]
    if best is not None:
        chance = f"{best['chance'][0]:.3f} to {best['chance'][1]:.3f}"
        lines.append(
            f"strongest attack on the method: {best['attack']} ({best['game']}), AUC {best['auc']:.3f}, "
            f"by chance {chance}"
        )
    return lines


def difference_text(values: dict[str, Any]) -> str:
    """What somebody with the release before as well can tell, in a sentence."""
    return (
        f"with the release before as well, {values['found']} of the {values['deleted']} deleted images are "
        f"identified among {values['candidates']} candidates, nobody else known "
        f"(by chance {values['by_chance']:.2g}): no certificate covers that"
    )


def _verdicts(values: dict[str, Any]) -> list[str]:
    """What is wrong, a sentence each."""
    served, lines = values["served"], []
    if served["num_still_in"]:
        lines.append(f"{served['num_still_in']} of these records are still in the model's data")
    if served["num_in_core"]:
        lines.append(
            f"{served['num_in_core']} of these images are core data: they are in the core weights, and are "
            "never forgotten"
        )
    left = served["influence"]
    if left["found"]:
        lines.append(
            f"{left['share']:.1e} of these records' influence is left in the served weights"
        )
    held = served["held"]
    if held is not None and not held["kept"]:
        noise = held["noise_ratio"]
        lines.append(
            f"the weights are not those the certificate speaks of: off the retrained ones by "
            f"{held['relative_distance']:.1e} relative, {held['shift_lower_bound']:.3g} sigma at least"
            + ("" if noise is None else f", with {noise:.3f} of the noise")
        )
    for c in values["contradictions"]:
        lines.append(
            f"the {c['attack']} attack proves epsilon ≥ {c['refuted_epsilon_bound']:.2f} for "
            f"{c['method']}, claimed {c['claimed_epsilon']:.2f}"
        )
    return lines
