#!/bin/sh
# Install what the browser tests need: Debian's chromium, and the packages of requirements-browser.txt.
# Without them these tests are skipped, with the reason; nothing else needs them.
cd "$(dirname "$0")/.." || exit 1
if ! command -v chromium > /dev/null; then
  echo "browser tests: installing chromium with apt-get (a minute)"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } > /dev/null 2>&1 \
    || { echo "browser tests: chromium could not be installed, so they will be skipped"; exit 0; }
fi
.venv/bin/python -c "import playwright, axe_playwright_python" 2> /dev/null \
  || .venv/bin/python -m pip install -qq --disable-pip-version-check -r requirements-browser.txt \
  || echo "browser tests: playwright could not be installed, so they will be skipped"
