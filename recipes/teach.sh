#!/usr/bin/env bash
# A bi-encoder and a cross-encoder teach each other (Augmented SBERT, arXiv 2010.08240; Trans-Encoder, arXiv 2109.13059).
# Expected: lab/LOG.md: LCQMC with 40,000 labels, cross-encoder +1.59 over labels alone (1 seed); STS-B, where all
# pairs have labels, no gain (3 seeds)
# Device: CPU, 2 cores
# Launch: bash recipes/teach.sh stsb runs/teach [ROUNDS [FLAGS OF EVERY TRAINING]]; after a kill, the same line again
set -euo pipefail
corpus=$1 output=$2 rounds=${3:-1} common=(--resume_from_checkpoint auto "${@:4}")
labels=(--corpus "$corpus" --learning_rate 5.0e-04 --num_train_epochs 3)

train() { # FOLDER RECIPE FLAGS: a finished run is kept
    [ -f "$1/run.json" ] || cosent train --config "$2" --output_dir "$1" "${@:3}" "${common[@]}"
}

finder=$output/bi_encoder_0 teacher=$output/bi_encoder_0
train "$finder" bi_encoder/cosent_mini "${labels[@]}"
for ((round = 1; round <= rounds; round++)); do
    for tower in cross_encoder bi_encoder; do # the finder's neighbours, scored by the last model, teach the next one
        pairs=$output/${tower}_${round}_pairs taught=$output/${tower}_${round}_taught
        [ -d "$pairs" ] || cosent mine --corpus "$corpus" --model "$finder" --teacher "$teacher" --output "$pairs" \
            --random 3000 --range_min 0
        [ "$tower" = bi_encoder ] && scale=20 || scale=5 # of cosines, and of logits that follow a teacher's scores
        train "$taught" "$tower/cosent_mini" --corpus "$pairs" --eval_corpora "$corpus" --num_train_epochs 1 --scale "$scale"
        teacher=$output/${tower}_$round
        train "$teacher" "$tower/cosent_mini" "${labels[@]}" --model_name_or_path "$taught"
    done
    finder=$teacher
done
echo "models: $output/cross_encoder_$rounds $teacher"
