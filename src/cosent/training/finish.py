"""End of a run: its model card, its record, and the Hub if asked."""

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
