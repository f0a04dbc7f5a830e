# SPDX-License-Identifier: MIT
"""A record of bench/results with a row on each line, so that what changes is seen by the row."""
import json


def write_record(path, record):
    rows = ",\n  ".join(map(json.dumps, record["rows"]))
    text = json.dumps(record | dict(rows=[]), indent=1)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace('"rows": []', f'"rows": [\n  {rows}\n ]') + "\n")
