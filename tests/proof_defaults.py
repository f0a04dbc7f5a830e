#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/proof_defaults.py WEFT [--strict]: no default changes without its proof (docs/proof.md).

tests/proof/defaults.json lists every option of `weft serve` that decides how answers are computed, with its default and the reports
that prove it. It fails when an option is not in the list, when the product's default is another one, when a report is
missing, was made when the default was another one, or has a cell of the candidate that did not come out as expected. A report that is awaited
(of a card, where none was at hand) is counted; with --strict (for a release) it is a failure, too."""
import copy
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "bench", "results")


def read(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def read_reports():
    """The reports of proofs among the records, by name."""
    found = {}
    for name in sorted(os.listdir(RESULTS)):
        if name.startswith("proof-") and name.endswith(".json"):
            found[name] = read(os.path.join(RESULTS, name))
    return found


def faults_of_proof(entry, proof, reports, awaited):
    """What is wrong with one proof of a default, in words."""
    name, candidate = proof["report"], proof["candidate"]
    if name not in reports:
        return [] if name in awaited else [f"its report bench/results/{name} is missing"]
    report = reports[name]
    found = []
    made_for = report["defaults"].get(entry["option"])
    if made_for != entry["default"]:
        found.append(f"bench/results/{name} was made when it was '{made_for}'")
    if report["baseline"]["profile"] != "default":
        found.append(f"the baseline of bench/results/{name} is not the product as it is")
    cells = [cell for cell in report["cells"] if cell["candidate"] == candidate]
    if not cells:
        found.append(f"bench/results/{name} has no cell of '{candidate}'")
    found += [f"bench/results/{name}: {candidate}, {cell['suite']}, {cell['contract']}: {cell['verdict']}, not {cell['expected']}"
              for cell in cells if not cell["as_expected"]]
    return found


def faults_of(listed, product, reports):
    """Everything that is wrong, a line each."""
    found = []
    entries = {entry["option"]: entry for entry in listed["defaults"]}
    if len(entries) != len(listed["defaults"]):
        found.append("an option is listed twice")
    found += [f"--{option}: it is not listed" for option in product if option not in entries]
    found += [f"--{option}: weft serve has no such option of memory, scheduling or device" for option in entries if option not in product]
    for option, entry in entries.items():
        mine = []
        if option in product and entry["default"] != product[option]:
            mine.append(f"its default is '{product[option]}', listed is '{entry['default']}'")
        if ("proofs" in entry) == ("why_none" in entry):
            mine.append("it has either proofs or words why it needs none")
        for proof in entry.get("proofs", []):
            mine += faults_of_proof(entry, proof, reports, listed["awaited"])
        found += [f"--{option}: {fault}" for fault in mine]
    found += [f"bench/results/{name} is there and still listed as awaited" for name in listed["awaited"] if name in reports]
    return found


def check_reports(weft, reports):
    found = []
    for name in reports:
        ran = subprocess.run([weft, "prove", "--report-check", f"bench/results/{name}"], cwd=ROOT, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            found.append(f"bench/results/{name}: {(ran.stdout + ran.stderr).strip()}")
    return found


def check_itself(listed, product, reports):
    """That a default which flips, an option that comes, a report that goes and a cell that fails are all noticed."""
    found = []

    def must_fail(what, listed=listed, product=product, reports=reports):
        if not faults_of(listed, product, reports):
            found.append(f"this test does not notice {what}")

    option = listed["defaults"][0]["option"]
    must_fail("a default that changed", product={**product, option: "flipped"})
    must_fail("a new option", product={**product, "new-switch": "off"})
    must_fail("an option that is gone", product={name: value for name, value in product.items() if name != option})
    for name in reports:
        must_fail(f"that {name} is gone", reports={other: reports[other] for other in reports if other != name})
        broken = copy.deepcopy(reports)
        broken[name]["cells"][0]["as_expected"] = False
        must_fail(f"a cell of {name} that failed", reports=broken)
        flipped = copy.deepcopy(reports)
        flipped[name]["defaults"] = {key: "another" for key in flipped[name]["defaults"]}
        must_fail(f"that {name} was made under other defaults", reports=flipped)
        awaited = copy.deepcopy(listed)
        awaited["awaited"].append(name)
        must_fail(f"that {name} is awaited though it is there", listed=awaited)
    return found


def main():
    weft = os.path.abspath(sys.argv[1])
    listed = read(os.path.join(ROOT, "tests", "proof", "defaults.json"))
    product = json.loads(subprocess.run([weft, "prove", "--defaults"], capture_output=True, text=True, check=True).stdout)
    reports = read_reports()
    found = faults_of(listed, product, reports) + check_reports(weft, reports)
    if not found:
        found = check_itself(listed, product, reports)
    awaited = listed["awaited"]
    if "--strict" in sys.argv:
        found += [f"bench/results/{name} is awaited: bench/proof.sh makes it on a card" for name in awaited]
    for fault in found:
        print(f"failed: {fault}")
    print(f"{len(listed['defaults'])} defaults, {len(reports)} reports, {len(awaited)} awaited, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
