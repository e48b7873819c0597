"""A user's own script, in one process or several: `python two_losses.py PAIRS.parquet MODEL OUTPUT_DIR BATCH`."""

import sys

from datasets import load_dataset

from cosent import PairTrainer, PairTrainingArguments, SentenceEncoder

rows, model, folder, batch = sys.argv[1:]
pairs = load_dataset("parquet", data_files=rows)["train"]
args = PairTrainingArguments(
    output_dir=folder,
    per_device_train_batch_size=int(batch),
    num_train_epochs=2,
    optim="sgd",
    learning_rate=3e-3,
    max_grad_norm=1000.0,
    use_cpu=True,
    disable_tqdm=True,
    report_to="none",
    eval_strategy="no",
    save_strategy="no",
)
# One of the losses has a head, with weights that the batches of the other do not need.
options = {"train_dataset": {"a": pairs, "b": pairs}, "loss": {"a": "sbert", "b": "cosent"}}
trainer = PairTrainer(SentenceEncoder.from_pretrained(model, dropout=0.0, max_length=32), args, **options)
trainer.train()
trainer.save_model()
