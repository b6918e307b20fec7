"""`python -m protofed`: the command line."""

from __future__ import annotations

from protofed.cli import entry

if __name__ == "__main__":
    entry()
