"""`ResumableTrainer`: a Trainer whose checkpoints are complete folders, also under FSDP2 and DeepSpeed ZeRO-2."""

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32
from accelerate.utils.constants import FSDP_MODEL_NAME
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.integrations.deepspeed import deepspeed_load_checkpoint
from transformers.trainer_utils import rotate_checkpoints

from cosent.atomic import SEAL, UNFINISHED, is_whole, seal
from cosent.compute.distributed import decided_by_main, launched_with, locked_by_main
from cosent.errors import InputError, writing
from cosent.models.loading import quiet_transformers
from cosent.training.checkpoints import CONTINUE, SETTINGS_NAME, final_folder

logger = logging.getLogger(__name__)

PRINTED = ("_spearman", "_recall_at_10", "_perplexity")  # endings of the validation metrics in a log line
NOT_PRINTED = ("eval_", "train_", "total_", "epoch", "grad_norm")
# Settings that `accelerate launch` passes on, under which weights are gathered, saved whole, and read by every rank.
FSDP_SETTINGS = {
    "FSDP_VERSION": "2",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


class LogLines(TrainerCallback):
    """Prints each log entry as a short line on stderr above the progress bar, instead of a dictionary."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        numbers = [name for name, value in logs.items() if isinstance(value, Real)]
        names = [name for name in numbers if name.endswith(PRINTED) or not name.startswith(NOT_PRINTED)]
        if state.is_world_process_zero and names:
            values = "  ".join(f"{name} {float(logs[name]):.4g}" for name in names)
            tqdm.write(f"epoch {state.epoch:.2f}  step {state.global_step}  {values}", file=sys.stderr)


class QuietProgress(ProgressCallback):
    """Progress bars without printed dictionaries."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        pass


class ResumableTrainer(Trainer):
    """Trainer whose checkpoints are sealed when they are complete; older ones stay until then.

    Resumed from the checkpoint of the last step, it does not train further.

    Checkpoints hold the complete model as serving tools load it. A subclass defines how one is read (`saved_state`),
    and sets `loads_all_weights = False` if it holds only a part of the weights.
    """

    starts_at_end = False
    at_start: Callable[[], Any] | None = None
    before: Any = None
    loads_all_weights = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.parts: dict[str, list[Tensor]] = {}  # of the loss, by name: of each batch since the last log line
        self.remove_callback(PrinterCallback)
        if self.pop_callback(ProgressCallback):
            self.add_callback(QuietProgress)
        self.add_callback(LogLines)

    def train(self, resume_from_checkpoint=None, *, at_start: Callable[[], Any] | None = None, **kwargs):
        """Trains like Trainer; the result of `at_start` becomes `before`.

        It is called once on every rank, when the model is wrapped and still has the initial weights of the run: those
        of `resume_from_checkpoint` are loaded after it. FSDP and DeepSpeed cannot evaluate earlier.
        """
        self.at_start = at_start
        with locked_by_main(self.args.output_dir):
            result = super().train(resume_from_checkpoint, **kwargs)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is None:
            logger.warning("No saved step had a %s: the last step is kept.", self.args.metric_for_best_model)
        return result

    def create_model_card(self, *args, **kwargs):
        """Writes no card of transformers, which `push_to_hub` would upload in the place of ours."""

    def create_accelerator_and_postprocess(self):
        # FSDP would gather the weights in bfloat16 and round scores to it, DeepSpeed would keep and save them in it.
        # bfloat16 scores are often equal, and cannot be ranked.
        precision = self.args.mixed_precision, self.args.bf16
        if launched_with() is not None:
            self.args.mixed_precision, self.args.bf16 = "no", False
        if launched_with() == "deepspeed":
            self.args.deepspeed_plugin.deepspeed_config["bf16"] = {"enabled": False}
        super().create_accelerator_and_postprocess()
        if self.accelerator.ddp_handler is not None:  # gradients are averaged where they lie, not copied there and back
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        self.args.mixed_precision, self.args.bf16 = precision
        check_strategy(self.accelerator, self.args.mixed_precision)

    def _init_training_state(self, max_steps, steps_per_epoch, epochs, resume_from_checkpoint, trial):
        with quiet_transformers():  # it drops the best checkpoint of a moved folder, with a warning
            trained = super()._init_training_state(max_steps, steps_per_epoch, epochs, resume_from_checkpoint, trial)
        self.starts_at_end = self.state.global_step >= max_steps
        if self.state.train_batch_size != self._train_batch_size:
            raise InputError(
                f"{resume_from_checkpoint} was trained with batches of {self.state.train_batch_size} pairs per device, "
                f"not {self._train_batch_size}: an epoch would be resumed at another pair. Repeat its batch size."
            )
        if self.args.load_best_model_at_end and (step := self.state.best_global_step) is not None:
            best = Path(resume_from_checkpoint).with_name(f"checkpoint-{step}")  # the run may have been moved or copied
            if not decided_by_main(lambda: is_whole(best)):
                raise InputError(
                    f"The best checkpoint so far, {best.name}, is not next to {resume_from_checkpoint}. Copy it there, "
                    "or pass --load_best_model_at_end false."
                )
            self.state.best_model_checkpoint = str(best)
        return trained

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        if launched_with() is not None and self.args.mixed_precision == "bf16":
            # Under autocast with float32 outputs, as accelerate does for a single GPU and for DDP.
            autocast = torch.autocast(self.args.device.type, torch.bfloat16)
            self.model.forward = convert_outputs_to_fp32(autocast(self.model.forward))
        if self.is_fsdp_enabled:
            warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # no loss works in place on outputs
            self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = layer_classes(self.model)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if self.at_start is not None:
            self.before = self.at_start()
        if resume_from_checkpoint is not None:
            self.load_weights(resume_from_checkpoint)
            if self.is_deepspeed_enabled:
                deepspeed_load_checkpoint(self.model_wrapped, resume_from_checkpoint)
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
            self._load_scaler(resume_from_checkpoint)
        return prepared

    def _determine_best_metric(self, metrics, trial):
        """Compares only steps that are saved with the best one, which is loaded at the end."""
        chosen_later = self.args.load_best_model_at_end and self.args.save_strategy != "best"
        if chosen_later and not self.control.should_save:
            return False
        return super()._determine_best_metric(metrics, trial)

    def saved_state(self, checkpoint: str | Path) -> dict[str, Tensor]:
        """The weights of a checkpoint, under the names of the model."""
        raise NotImplementedError

    def load_weights(self, checkpoint: str | Path) -> None:
        """Loads the weights of a checkpoint; the optimizer keeps its state."""
        state = dict(self.saved_state(checkpoint))  # every rank has all of it
        for name, shard in self.model.state_dict().items():
            if isinstance(shard, DTensor) and name in state:  # of FSDP
                whole = state[name].to(shard.device)
                state[name] = distribute_tensor(whole, shard.device_mesh, shard.placements, src_data_rank=None)
        self.model.load_state_dict(state, strict=self.loads_all_weights)
        if self.is_deepspeed_enabled:
            self.model_wrapped.optimizer.refresh_fp32_params()  # its own copy, which the next step would write back

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """Loads nothing: Trainer calls it before the model is wrapped, see `_prepare_for_training`."""

    def _load_best_model(self) -> None:
        self.load_weights(self.state.best_model_checkpoint)

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs |= {name: float(torch.stack(values).mean()) for name, values in self.parts.items()}
            self.parts.clear()
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        if self.args.should_save:
            (folder / SEAL).unlink(missing_ok=True)  # left by a run that was resumed from before this step
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with writing(folder, advice=CONTINUE):
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # every rank has written its random state
        if self.args.should_save:
            with writing(folder, advice=CONTINUE):
                started = Path(self.args.output_dir, UNFINISHED)
                if started.is_file():  # missing for a trainer used outside a job
                    shutil.copyfile(started, folder / SETTINGS_NAME)
                (folder / f"{FSDP_MODEL_NAME}.bin").unlink(missing_ok=True)  # the weights again, which nothing reads
                seal(folder)
            rotate_checkpoints(
                str(folder.parent), limit, best_model_checkpoint=self.state.best_model_checkpoint, use_mtime=True
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        if output_dir is not None and _internal_call:  # a checkpoint, or the hidden folder of a job
            with writing(output_dir, advice=CONTINUE):
                return super().save_model(output_dir, _internal_call)
        output_dir = output_dir or self.args.output_dir
        with writing(output_dir, advice=CONTINUE), final_folder(self.args, output_dir) as folder:
            super().save_model(str(folder), _internal_call=True)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save")

    def _run_epoch(self, *, epoch, train_dataloader, **kwargs):
        set_epoch(train_dataloader, epoch)
        if self.starts_at_end:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(epoch=epoch, train_dataloader=train_dataloader, **kwargs)


def set_epoch(dataloader, epoch: int) -> None:
    """Sets the epoch of a dataloader's sampler, however deep accelerate has wrapped it.

    accelerate 1.15 looks two wrappers deep, but there are three if several processes resume within an epoch: their
    sampler would repeat the order of the first epoch.
    """
    sampler = dataloader.batch_sampler
    while sampler is not None:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)


def check_strategy(accelerator: Accelerator, precision: str) -> None:
    """Refuses strategies under which a run would fail later or train incorrectly."""
    strategy = launched_with()
    if strategy is not None and precision == "fp16":
        raise InputError(f"mixed_precision fp16 under {strategy}: nothing would scale the loss. Use bf16.")
    if strategy == "deepspeed" and (stage := accelerator.state.deepspeed_plugin.zero_stage) not in (1, 2):
        raise InputError(f"zero_stage {stage} is not supported, only 1 and 2. Use --launch fsdp to shard weights.")
    for name, value in FSDP_SETTINGS.items() if strategy == "fsdp" else ():
        if (setting := os.environ.get(name)) != value:
            raise InputError(
                f"{name.lower()} {setting} is not supported, only {value}. Use recipes/accelerate/fsdp.yaml."
            )


def layer_classes(model: nn.Module) -> list[str]:
    """Class names of the layers in a backbone's deepest stack; FSDP shards them one by one.

    transformers names them in `_no_split_modules` for BERT and RoBERTa, but not for ELECTRA, RoFormer or DeBERTa.
    """
    stacks = [stack for stack in model.modules() if isinstance(stack, nn.ModuleList) and len(stack)]
    deepest = max(stacks, key=len, default=())
    return sorted({type(layer).__name__ for layer in deepest})
