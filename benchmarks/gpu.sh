#!/usr/bin/env bash
# Runs the CUDA tests, tunes the fused kernels and runs every GPU benchmark, in under 9 minutes, and writes one table.
#
#   benchmarks/gpu.sh [--python PYTHON] [--out FOLDER] [--device cuda|cpu] [--quick] [--budget SECONDS] [--skip NAME]...
#
# PYTHON needs torch, numpy, safetensors, tqdm, tyro, pytest and hypothesis; torch-geometric is a peer of exact_mlp and of
# graphs. Fredholm need not be installed. FOLDER (default: $OUT, else gpu-results) gets table.md, table.json and log.txt,
# and tiles.json, the tiles that `tiles` found, with which the benchmarks after it run.
# What fails or runs out of time is in the table, with the rows measured until then, and the rest goes on; the exit
# code is then 1.
set -uo pipefail

python=${PYTHON:-python3} out=${OUT:-gpu-results} device=cuda quick=() budget_s=530 skipped= failed=0
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=${2:?--python needs a path}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --device) device=${2:?--device needs cuda or cpu}; shift 2 ;;
    --quick) quick=(--quick); shift ;;
    --budget) budget_s=${2:?--budget needs seconds}; shift 2 ;;
    --skip) skipped+=" ${2:?--skip needs the name of a step} "; shift 2 ;;
    *) echo "gpu.sh: no option $1; see the top of benchmarks/gpu.sh" >&2; exit 2 ;;
  esac
done

python=$(command -v "$python") || { echo "gpu.sh: there is no such python; name one by --python" >&2; exit 2; }
case $python in /*) ;; *) python=$PWD/$python ;; esac
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
cd "$(dirname "$0")/.." || exit 2
export FREDHOLM_TILES=$out/tiles.json
export PYTHONPATH=$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

missing=$("$python" -c '
import importlib.util
needed = ("torch", "numpy", "safetensors", "tqdm", "tyro", "pytest", "hypothesis")
print(*(name for name in needed if importlib.util.find_spec(name) is None))
') || exit 2
[ -z "$missing" ] || { echo "gpu.sh: $python lacks $missing; install them" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$out/log.txt"

# step NAME SECONDS COMMAND...: runs it for at most that long, and no longer than is left
step() {
  local name=$1 limit=$2 started=$SECONDS left=$((budget_s - SECONDS)) code=left_out
  shift 2
  case $skipped in *" $name "*) return ;; esac
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -ge 5 ]; then
    echo "== $name, at most $limit s" | tee -a "$out/log.txt"
    timeout --kill-after=5 "$limit" "$@" </dev/null >"$work/log" 2>&1
    code=$?
    tr '\r' '\n' <"$work/log" | grep -v 'it/s\]\|s/it\]\|?it/s\]' | tee -a "$out/log.txt" | tail -n 3
  fi
  [ "$code" = 0 ] || failed=1
  printf '%s\t%s\t%s\n' "$name" "$code" "$((SECONDS - started))" >>"$work/steps.tsv"
}

bench() {
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "$python" -m benchmarks "$name" --device "$device" --json "$work/$name.json" "${quick[@]}" "$@"
}

# limits are for what hangs; the budget is for all steps together
# warnings of another version of torch are no failures here; what takes long is compiled side by side
beside=()
"$python" -c 'import xdist' 2>/dev/null && beside=(-n 8)
step tests 90 "$python" -m pytest -q "${beside[@]}" -p no:cacheprovider -W default -k "cuda or gpu or routes_on_devices" \
  tests/evaluation/test_routes_on_devices.py tests/evaluation/triton/test_on_a_gpu.py \
  tests/evaluation/recurrence/test_native_recurrence.py \
  tests/operators/test_cost.py tests/tasks/images/test_augmentation.py tests/contracts/test_waiting.py
[ "$device" = cpu ] || bench tiles 95 --case-budget-s 15
bench itnet 90 --rounds 5 --budget-s 3
bench training_step 60 --rounds 3 --budget-s 2
# the kernels that roofline compiles, half a minute, serve large_domains and exact_mlp too: sizes are multiples of 16
bench roofline 75 --points 2304 --matrix 8192 --rounds 5 --budget-s 1
bench exact_mlp 60 --peer-sizes 64 256 --own-sizes 1024 4096 --rounds 5 --budget-s 1 --peer-limit-s 1
bench large_domains 75 --sides 32 64 128 --rounds 3 --budget-s 1 --limit-s 1
bench scan 60 --own-sizes 16384 --rounds 3 --budget-s 1.5
bench converted_layers 25 --rounds 10 --budget-s 1
bench yat_attention 40 --rounds 10 --budget-s 1
bench yat_dense 25 --rounds 10 --budget-s 1
bench infinite_attention 40 --rounds 5 --budget-s 1
bench linear_infinite_attention 40 --own-points 331776 --own-channels 768 --own-heads 12 --own-precision bfloat16 \
  --rounds 3 --budget-s 1
bench neural_fields 40 --rounds 5 --budget-s 1
bench infvit 45 --rounds 5 --budget-s 2 --limit-s 2
bench graphs 45 --sizes 100000 --rounds 5 --budget-s 1
bench one_kernel 30 --rounds 5 --budget-s 1
bench continuous_convolution 40 --rounds 3 --budget-s 1

"$python" -m benchmarks.gather "$work" "$out" || failed=1
echo "$out/table.md, table.json and log.txt, after $SECONDS s"
exit "$failed"
