"""Receipts of a workspace: one for each request, nothing that must not stay, and no kill loses one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import kill
from tests.shell import efface
from tests.workspaces import NEW, OWNER, assert_checks, contents

from efface.errors import RequestError
from efface.receipts import keys
from efface.receipts.check import checks
from efface.receipts.receipt import WHOLE, opened
from efface.workspace import Result, Workspace
from efface.workspace.scan import scan
from efface.workspace.signing import HIDING, among_others
from efface.workspace.steps import Milestone
from efface.workspace.verify import all_checks


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keys.make(tmp_path / "signing.key")
    return tmp_path / "signing.key"


@pytest.fixture
def signing(path: Path, key: Path) -> Workspace:
    workspace = Workspace.open(path)
    workspace.protocol.signing.use(key)
    return workspace


def failed(path: Path, key: Path, number: int) -> list[str]:
    """What a stranger finds wrong with a receipt."""
    ring, ledger = keys.public_path(key), path / "ledger.sqlite"
    return [c.name for c in checks(path / f"receipts/{number}.json", ring, ledger) if not c.ok]


def test_every_request_has_a_receipt(signing: Workspace, key: Path, kind: str) -> None:
    path, reference = signing.path, "ab" * 32
    first = signing.forget(owner=OWNER, references=(reference,))
    assert first.receipt == path / "receipts/2.json"
    assert failed(path, key, 2) == []
    whole = first.receipt.read_bytes()
    receipt = opened(whole, keys.mended(key).ring)
    assert receipt.action == "forget"
    assert reference in receipt.request
    assert receipt.subjects == {**receipt.subjects, **signing.protocol.signing.subjects()}
    assert {"core", "classes", "releases/2/user.safetensors"} <= set(receipt.subjects)
    assert receipt.arithmetic == ("integer" if kind == "compact" else "float64")
    assert receipt.not_covered
    assert scan(path, owners=[OWNER]).clean
    signing.add(NEW)
    signing.forget(ids="image-1-0")
    assert [failed(path, key, n) for n in (2, 3, 4)] == [[], [], []]
    assert_checks(path)
    assert sorted(p.name for p in (path / "receipts").iterdir()) == [
        *("2.json", "3.json", "4.json", "4.kept.json"),
    ]


def references_of(result: Result, key: Path) -> list[str]:
    assert result.receipt is not None
    return list(opened(result.receipt.read_bytes(), keys.mended(key).ring).request)[1:]


def test_where_noise_hides_the_difference_a_receipt_does_not_tell_how_many_asked(
    signing: Workspace, key: Path, kind: str
) -> None:
    """Each finds what they know it by, among random ones; without such noise nothing is put in."""
    asked = tuple(f"{n:02x}" * 32 for n in (7, 3, 5))
    if kind == "tangent":  # its noise is for the forgotten, and no difference is hidden by it
        assert references_of(signing.forget(owner=OWNER, references=asked), key) == list(asked)
        return
    assert references_of(signing.forget(ids="image-1-0", references=asked), key) == list(asked)
    signing.plan(sigma=1e5)
    found = references_of(signing.forget(owner=OWNER, references=asked), key)
    assert set(asked) < set(found)
    assert (len(found), found) == (HIDING, sorted(found))
    alone = references_of(signing.forget(ids="image-1-1", references=asked[:1]), key)
    assert len(alone) == len(found)
    assert set(alone) & set(found) == set(asked[:1])  # drawn anew
    assert references_of(signing.forget(ids="image-1-3"), key) == []


@pytest.mark.parametrize(("number", "size"), [(0, 0), (1, 16), (16, 16), (17, 32), (33, 64)])
def test_how_many_references_there_are_among_others(number: int, size: int) -> None:
    given = tuple(f"{n:064x}" for n in range(number))
    found = among_others(given)
    assert len(set(found)) == len(found) == size
    assert set(given) <= set(found)


def test_receipts_name_nobody(signing: Workspace) -> None:
    signing.forget(owner=OWNER)
    found = b"".join(data for n, data in contents(signing.path).items() if "receipts/" in n)
    text = found.decode() + json.dumps([opened_payload(found)])
    for name in (OWNER, "image-1", "cohort"):
        assert name not in text


def opened_payload(data: bytes) -> list[str]:
    import base64

    return [base64.b64decode(json.loads(line)["payload"]).decode() for line in data.splitlines()]


def test_a_receipt_that_was_superseded_tells_less(signing: Workspace, key: Path) -> None:
    """The digests of its sums and weights would let whoever has a record try out its label."""
    path = signing.path
    before = signing.forget(ids="image-1-0").receipt
    assert before is not None
    whole = opened(before.read_bytes(), keys.mended(key).ring)
    telling = [d for n, d in whole.subjects.items() if n not in ("core", "classes")]
    signing.forget(owner=OWNER)
    everything = b"".join(contents(path).values()).decode(errors="replace")
    everything += "".join(opened_payload((path / "receipts/2.json").read_bytes()))
    assert not [d for d in telling if d in everything]
    left = opened((path / "receipts/2.json").read_bytes(), keys.mended(key).ring)
    assert set(left.subjects) == {"core", "classes", WHOLE}
    assert left.certificate is None or left.certificate["superseded"] is True


@pytest.mark.parametrize(
    "step",
    [Milestone.PURGED, Milestone.RECEIPT, Milestone.DONE, Milestone.OLD_CERTIFICATES_GONE],
)
def test_a_kill_loses_no_receipt(signing: Workspace, key: Path, step: Milestone) -> None:
    signing.forget(ids="image-1-0")
    kill(signing.path, "forget", step)
    Workspace.open(signing.path)
    assert [failed(signing.path, key, n) for n in (2, 3)] == [[], []]
    assert_checks(signing.path)


def test_a_key_that_is_gone_does_not_stop_a_request(signing: Workspace, key: Path) -> None:
    key.rename(key.with_name("elsewhere"))
    result = signing.forget(owner=OWNER)
    assert result.receipt is None
    assert "no receipt was signed" in " ".join(result.notes)
    assert_checks(signing.path)
    key.with_name("elsewhere").rename(key)
    assert signing.protocol.sign() == signing.path / "receipts/2.json"
    assert failed(signing.path, key, 2) == []
    assert_checks(signing.path)


def test_no_key_no_receipt(path: Path) -> None:
    workspace = Workspace.open(path)
    assert workspace.forget(owner=OWNER).receipt is None
    assert not (path / "receipts").exists()
    with pytest.raises(RequestError, match="no key"):
        workspace.protocol.sign()


def test_changed_and_missing_receipts_are_noticed(signing: Workspace) -> None:
    path = signing.path
    signing.forget(ids="image-1-0")
    signing.forget(owner=OWNER)
    for name in ("2.json", "3.json", "3.kept.json"):
        file = path / "receipts" / name
        data = file.read_bytes()
        for other in (data[:-2], data.replace(b"A", b"B", 1), None):
            file.unlink() if other is None else file.write_bytes(other)
            found = [c.name for c in all_checks(Workspace.open(path, recover=False)) if not c.ok]
            assert found == ["receipts"]
            file.write_bytes(data)
    assert_checks(path)


def test_the_command_line_checks_it_without_torch_and_numpy(signing: Workspace, key: Path) -> None:
    signing.forget(owner=OWNER)
    words = ["efface", "verify", str(signing.path / "receipts/2.json"), "--key", f"{key}.pub"]
    code = (
        f"import sys; sys.argv = {words!r}\n"
        "from efface.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, {'torch', 'numpy', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 set()"


def test_the_command_line(signing: Workspace, key: Path, tmp_path: Path) -> None:
    path, pub = signing.path, keys.public_path(key)
    shown = efface("forget", path, "--owner", OWNER).stdout
    assert "signed receipt" in shown
    receipt = path / "receipts/2.json"
    good = efface("verify", receipt, "--key", pub, "--ledger", path / "ledger.sqlite")
    assert good.exit_code == 0
    assert "everything checks" in good.stdout
    assert "not covered" in good.stdout
    assert efface("verify", receipt, "--key", pub, "--workspace", path, "--retrain").exit_code == 0
    assert efface("verify", receipt).exit_code == 2
    assert efface("verify", receipt, "--key", pub, "--retrain").exit_code == 2
    changed = tmp_path / "changed.json"
    changed.write_bytes(receipt.read_bytes().replace(b"A", b"B", 1))
    assert efface("verify", changed, "--key", pub).exit_code == 4
    stranger = tmp_path / "stranger.key"
    assert efface("keys", "new", stranger).exit_code == 0
    bad = efface("verify", receipt, "--key", keys.public_path(stranger))
    assert bad.exit_code == 4
    assert "unknown" in bad.stderr
    efface("forget", path, "--id", "image-1-0")
    old = efface("verify", receipt, "--key", pub, "--workspace", path)
    assert old.exit_code == 0
    assert "release 2, and 3 is published" in " ".join(old.stdout.split())
