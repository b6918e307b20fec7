"""Write requirements.hashes.txt: the packages of requirements.txt with the SHA-256 of the files that pip installs.

    python scripts/hash_requirements.py [--check]

With these hashes pip refuses a file that was exchanged on its way:

    pip install torch==2.13.0
    pip install --no-deps --require-hashes -r requirements.hashes.txt

The hashes are those of the files for this Python and this platform; another platform has other files, so run the script
there. torch is left out: `make setup` installs a file for the CPU, which has another hash on each platform. `--check`
compares the file with requirements.txt (names and versions) and writes nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).parents[1]
PINNED, HASHED = TOP / "requirements.txt", TOP / "requirements.hashes.txt"


def pinned(text: str) -> dict[str, str]:
    """Names and versions of the lines "name==version"."""
    pairs = re.findall(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def hashed_lines() -> list[str]:
    """What pip would install, with the hash of each file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", *words, "-r", str(PINNED)], check=True)
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = []
    for entry in installs:
        name = re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower()
        sha256 = entry["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={entry['metadata']['version']} --hash=sha256:{sha256}")
    return sorted(lines)


def main() -> None:
    wanted = pinned(PINNED.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        platform = f"Python {sys.version_info.major}.{sys.version_info.minor}, {sys.platform}"
        head = f"# Files for {platform}. Written by scripts/hash_requirements.py from requirements.txt; do not edit."
        HASHED.write_text("\n".join([head, *hashed_lines()]) + "\n", encoding="utf-8")
    got = pinned(HASHED.read_text(encoding="utf-8"))
    if got != wanted:
        different = sorted(set(got.items()) ^ set(wanted.items()))
        sys.exit(f"{HASHED.name} does not fit {PINNED.name}: {different[0][0]}. Run scripts/hash_requirements.py.")
    print(f"{len(got)} packages with their hashes in {HASHED.name}.")


if __name__ == "__main__":
    main()
