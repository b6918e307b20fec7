#!/bin/sh
# Find a Python that runs (the shim of a version manager may not), then create .venv with it.
set -eu
cd "$(dirname "$0")/.."
for python in ${PYTHON:-python3.11 python3 python3.12 python3.13 python}; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        exec "$python" scripts/setup.py
    fi
done
echo "protofed needs Python 3.11 or newer with the venv module. Tried: ${PYTHON:-python3.11 python3 python3.12 python3.13 python}." >&2
echo "Install it (on Debian: apt install python3 python3-venv), or give its path: make setup PYTHON=/path/to/python3" >&2
exit 1
