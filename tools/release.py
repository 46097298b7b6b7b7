"""A copy of the project that can be published: its address in the metadata, and in the README's links.

    python tools/release.py https://forge.example/team/efface --out FOLDER

In the checkout links are relative, so that they work wherever it lies; a package index shows the README
alone. Links become ADDRESS/blob/vVERSION/…, pictures ADDRESS/raw/vVERSION/…, which GitHub, GitLab and Gitea
all serve. ``make dist ADDRESS=…`` builds the two packages from the copy.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
IMAGE = re.compile(r'(<img[^>]* src=")(?!\w+:)([^"]+)"')


def linked(text: str, address: str, version: str) -> str:
    """``text`` with every relative link below ``address``, at the tag of the version."""
    pages, files = (f"{address}/{kind}/v{version}/" for kind in ("blob", "raw"))
    text = LINK.sub(lambda m: f"{m[1]}[{m[2]}]({files if m[1] else pages}{m[3]})", text)
    return IMAGE.sub(lambda m: f'{m[1]}{files}{m[2]}"', text)


def with_urls(pyproject: str, address: str) -> str:
    """pyproject.toml with ``[project.urls]``."""
    urls = {
        "Homepage": address,
        "Source": address,
        "Documentation": f"{address}/tree/HEAD/docs",
        "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    changed = pyproject.replace(
        "[project.scripts]", f"[project.urls]\n{lines}\n[project.scripts]", 1
    )
    assert "urls" in tomllib.loads(changed)["project"]
    return changed


def release(address: str, out: Path, version: str) -> None:
    """What git knows of the project, copied to ``out``, with the two files changed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0")[:-1]:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, out / name)
    readme, project = out / "README.md", out / "pyproject.toml"
    readme.write_text(linked(readme.read_text("utf-8"), address, version), "utf-8")
    project.write_text(with_urls(project.read_text("utf-8"), address), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("address", help="where the project lives: https://HOST/OWNER/NAME")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    given = parser.parse_args()
    address = given.address.rstrip("/")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+){1,4}", address):
        sys.exit(f"{address!r} is no address. Give it as https://HOST/OWNER/NAME.")
    if given.out.exists():
        sys.exit(f"{given.out} is there already. Name a folder that is not.")
    sys.path.insert(0, str(ROOT / "src" / "efface"))
    from version import VERSION

    release(address, given.out, VERSION)
    print(f"{given.out}: version {VERSION} for {address}")


if __name__ == "__main__":
    main()
