#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tests/browser/run.sh WEFT [...]: the page in a headless Chromium (page.py), where Python and Chromium are; else a line and 77.
set -euo pipefail
if ! command -v python3 >/dev/null; then
  echo "page: python3 is not installed: left out"
  exit 77
fi
exec python3 "$(dirname "$0")/page.py" "$@"
