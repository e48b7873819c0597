"""Encode shards on a Ray cluster, with Ray Data: the same bytes as `cosent encode` writes, whichever worker dies.

A batch of Ray Data is whatever rows happen to be together, and the last bits of a vector depend on its batch. So what a
worker gets is the name of a shard, and it does what `cosent encode` does with it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cosent.errors import InputError
from cosent.inference.vectors import Encoded, chunk_runner, encode_shard, find_inputs, outputs_of
from cosent.models.teacher import load_with_settings


class ShardEncoder:
    """Actor for `Dataset.map_batches`: loads the model once, and encodes the shards of each batch.

    Args:
        model, options: as for `load_with_settings`.
    """

    def __init__(self, model: str, options: dict):
        self.encoder, self.settings = load_with_settings(model, **options)

    def __call__(self, batch: dict) -> dict:
        """Encodes `batch["input"]` to `batch["output"]`, paths that every machine sees; returns columns of `Encoded`.

        A shard that is there is not encoded again, so that a batch may be run twice.
        """
        with chunk_runner(self.encoder, load=lambda: self.encoder, workers=1) as run:
            pairs = zip(batch["input"], batch["output"], strict=True)
            done = [asdict(encode_shard(run, Path(source), Path(output), self.settings)) for source, output in pairs]
        return {name: [shard[name] for shard in done] for name in done[0]}


def encode_on_ray(
    model: str,
    inputs: Sequence[str],
    output: str | Path,
    workers: int,
    num_cpus: float = 1,
    num_gpus: float = 0,
    **options,
) -> list[Encoded]:
    """Encodes files as shards on the Ray cluster that this program is connected to (or starts here).

    Args:
        model: as `--model` of `cosent encode`; a folder must be where every machine sees it.
        inputs: files or patterns, as `--text`.
        output: a folder that every machine sees.
        workers: processes, each with the model.
        num_cpus, num_gpus: of each worker.
        options: of `load_with_settings`: text_column, kept, normalize, prompt, device, ...

    Returns:
        The shards in the order of their names. Those whose worker died were run again by another one.

    Raises:
        InputError: Ray is not installed, or inputs that cannot be shards.
    """
    try:
        import ray.data
    except ImportError as error:
        raise InputError("encode_on_ray needs Ray, which is not installed. Run pip install 'cosent[ray]'.") from error
    paths = find_inputs(inputs)
    Path(output).mkdir(exist_ok=True)
    outputs = outputs_of(paths, Path(output))
    shards = [
        {"input": str(path.absolute()), "output": str(to.absolute())} for path, to in zip(paths, outputs, strict=True)
    ]
    done = ray.data.from_items(shards, override_num_blocks=len(shards)).map_batches(
        ShardEncoder,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        fn_constructor_args=(model, options | {"shards": len(shards)}),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
    return sorted((Encoded(**row) for row in done.take_all()), key=lambda shard: shard.output)
