#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The proofs of the product's defaults in one go, as reports for bench/results (docs/proof.md). Exit status 1 when a cell did not come out as
# expected; the report is there all the same.
#
#   bench/proof.sh [-p PREBUILT] [-m MODEL.gguf] [-o OUT] [-c COMMIT] cpu|card
#     cpu   proof-cpu.json: what a cpu shows
#     card  proof-card.json on one card, with the demo model, proof-precision.json with the demo model of 5 bits, drift-card.json: faults inside fail there, too, and drafters-card.json: each
#           drafter; proof-cards.json where there are two cards; with -m also large-card.json of a large model, some ten starts of it
#     -p    folder with weft and libweft-cuda.so [build]
#     -o    folder of the reports [bench/results]
set -euo pipefail
cd "$(dirname "$0")/.."
prebuilt=build model='' out=bench/results commit=${WEFT_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
while getopts 'p:m:o:c:' option; do
  case $option in
    p) prebuilt=$OPTARG ;;
    m) model=$OPTARG ;;
    o) out=$OPTARG ;;
    c) commit=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
where=${1:-}
[ "$where" = cpu ] || [ "$where" = card ] || { echo "bench/proof.sh: say cpu or card"; exit 2; }
mkdir -p "$out"
[ -d "$prebuilt/lib" ] && export LD_LIBRARY_PATH=$prebuilt/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=0
# prove NAME MATRIX MODEL OPTIONS...: the report with the facts that records have besides
prove() {
  local code=0
  echo "== $1: $2 on $(basename "$3")"
  "$prebuilt/weft" prove -m "$3" --matrix "$2" "${@:4}" --commit "$commit" -o "$out/$1" || code=$?
  [ "$code" = 0 ] || { failed=1; echo "exit code $code"; }
  [ -e "$out/$1" ] || return 0
  python3 - "$out/$1" "$3" "$prebuilt/libweft-cuda.so" "$where" <<'PY'
import json, subprocess, sys
path, model, module, where = sys.argv[1:]
report = json.load(open(path))
report["model"] = [json.loads(subprocess.run(["python3", "bench/facts.py", model], capture_output=True, text=True, check=True).stdout)]
if where == "card":
    said = subprocess.run(["python3", "bench/machine_code.py", "--whole", module], capture_output=True, text=True, check=False).stdout.split()
    if said:
        report["machine_code"] = said[0]
def line(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
cells = report.pop("cells")  # a line each
with open(path, "w") as out:
    out.write("{" + "".join(f"{line(key)}:{line(value)},\n" for key, value in report.items()))
    out.write('"cells":[\n' + ",\n".join(map(line, cells)) + "\n]}\n")
PY
}
demo=model/demo/weft-demo.gguf
if [ "$where" = cpu ]; then
  prove proof-cpu.json defaults-cpu $demo
else
  prove proof-card.json defaults-card $demo
  prove proof-precision.json precision-card model/demo/weft-demo-ar.gguf
  prove drift-card.json drift $demo --backend cuda
  prove drafters-card.json drafters $demo --backend cuda
  [ "$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)" -lt 2 ] || prove proof-cards.json defaults-cards $demo
  [ -z "$model" ] || prove large-card.json defaults-large "$model"
fi
exit $failed
