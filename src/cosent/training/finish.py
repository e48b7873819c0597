"""End of a run: its model card, its record, and the Hub if asked."""

import shlex

from cosent.publishing.hub import upload
from cosent.publishing.model_card import write_card
from cosent.run import RunRecord
from cosent.training.resumable_trainer import ResumableTrainer


def finish(trainer: ResumableTrainer, record: RunRecord) -> None:
    """Writes card and record into the output folder, and publishes it with --push_to_hub; for the main process.

    Raises:
        InputError: the Hub refuses; the run has finished all the same.
    """
    args = trainer.args
    write_card(args.output_dir, record)
    record.save(args.output_dir)  # from here on the run counts as finished
    if args.push_to_hub:
        address = upload(args.output_dir, trainer.hub_model_id, True, "End of training", args.hub_token)
        print(f"published: {address}")


def model_line(folder: str, record: RunRecord) -> str:
    """Where the model is, and the command to try it."""
    trained = f"model in {folder} ({record.train_seconds:.0f} s of training)"
    return f"{trained}\nnext: cosent similarity --model {shlex.quote(str(folder))} 怎么还款 如何还款"
