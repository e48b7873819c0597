#!/usr/bin/env bash
# Everything that only a CUDA machine can show, in one command: correctness, exactness, throughput next to
# sentence-transformers, one step of FSDP, DeepSpeed and 4-bit LoRA, and a recipe of base size.
#
#     bash lab/benchmarks/gpu.sh DATA OUTPUT [MODEL]
#
# DATA holds prepared corpora (stsb, lcqmc, pawsx), OUTPUT gets JSON files, folders and logs, and MODEL is a BERT-like
# encoder of base size; without one, the recipe starts from `mini`. A part that fails says so in OUTPUT/summary.txt.
set -uo pipefail
data=${1:?folder of prepared corpora} output=${2:?folder to write} model=${3:-mini}
python=${PYTHON:-python}
mkdir -p "$output"
output=$(cd "$output" && pwd)
data=$(cd "$data" && pwd)
cd "$(dirname "$0")/../.."
: >"$output/summary.txt"
"$python" -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.cuda.get_device_name())' |
    tee "$output/device.txt" || exit 2

part() { # name command...
    local name=$1
    shift
    if "$@" >"$output/$name.log" 2>&1; then echo "$name: done"; else echo "$name: FAILED, see $name.log"; fi |
        tee -a "$output/summary.txt"
}
train() { # name recipe flags...
    local name=$1 recipe=$2
    shift 2
    part "$name" "$python" -m cosent train --config "$recipe" --data_dir "$data" --corpus stsb --max_steps 20 \
        --eval_strategy no --save_strategy no --load_best_model_at_end false --output_dir "$output/$name" --overwrite_output_dir true "$@"
}

part tests "$python" -m pytest -q -m gpu
part exactness "$python" -m lab.benchmarks.exactness --corpus "$data/stsb" --output "$output/exactness.json"
part speed "$python" -m lab.benchmarks.speed --corpus "$data/stsb" "$data/lcqmc" "$data/pawsx" --output "$output/speed.json"
train float32 bi_encoder/cosent_mini
train bf16 bi_encoder/cosent_mini --bf16 true
train four_bit bi_encoder/cosent --model_name_or_path "$model" --use_peft true --load_in_4bit true --bf16 true
train fsdp bi_encoder/cosent_mini --launch fsdp --processes 1
train deepspeed bi_encoder/cosent_mini --launch deepspeed_zero2 --processes 1
part base "$python" -m cosent train --config bi_encoder/cosent --model_name_or_path "$model" --data_dir "$data" \
    --corpus stsb --bf16 true --output_dir "$output/base" --overwrite_output_dir true
grep -q FAILED "$output/summary.txt" && exit 1
exit 0
