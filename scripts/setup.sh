#!/bin/sh
# Pick a Python that really runs (a version manager's shim may not), then let it make .venv ready.
set -eu
cd "$(dirname "$0")/.."
for python in ${PYTHON:-python3.11 python3 python3.12 python3.13 python}; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        exec "$python" scripts/setup.py
    fi
done
echo "protofed needs Python 3.11 or newer with the venv module; none of ${PYTHON:-python3.11 python3 python3.12 python3.13 python} is one." >&2
echo "Install one (on Debian: apt install python3 python3-venv), or name one: make setup PYTHON=/path/to/python3" >&2
exit 1
