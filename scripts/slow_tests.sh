#!/bin/sh
# Install what some slow tests need: Debian's chromium, and the packages of requirements-slow.txt.
# What cannot be installed is said, and its tests are skipped with the reason; nothing else needs it.
cd "$(dirname "$0")/.." || exit 1
if ! command -v chromium > /dev/null; then
  echo "slow tests: installing chromium with apt-get (a minute)"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } > /dev/null 2>&1 \
    || echo "slow tests: chromium could not be installed, so the tests in a browser will be skipped"
fi
.venv/bin/python -c "import playwright, axe_playwright_python, nbclient, ipykernel" 2> /dev/null \
  || .venv/bin/python -m pip install -qq --disable-pip-version-check -r requirements-slow.txt \
  || echo "slow tests: some packages could not be installed, so tests of the report and the notebook will be skipped"
