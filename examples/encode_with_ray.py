"""Embed Parquet files on all machines of a Ray cluster: each row gets a column `vector`, float32 of length 1.

pip install 'ray[data]'
python examples/encode_with_ray.py questions/ question vectors/ --model runs/faq --workers 8

A worker holds the model once and reads batches, whose rows stay together with their vectors.
"""

import argparse

import ray


class Encoder:
    """A worker: loads the model, and adds the vectors to a batch of rows."""

    def __init__(self, model: str, column: str):
        from cosent import SentenceEncoder

        self.encoder, self.column = SentenceEncoder.from_pretrained(model), column

    def __call__(self, batch: dict) -> dict:
        vectors = self.encoder.encode(batch[self.column].tolist(), normalize_embeddings=True)
        return batch | {"vector": vectors}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("files", "column", "output"):
        parser.add_argument(name)
    parser.add_argument("--model", default="similar")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4096, help="of a batch")
    args = parser.parse_args()
    rows = ray.data.read_parquet(args.files).repartition(target_num_rows_per_block=args.rows)
    settings = {"model": args.model, "column": args.column}
    workers = ray.data.ActorPoolStrategy(size=args.workers)  # of one core each: leave some to read and write
    rows = rows.map_batches(Encoder, fn_constructor_kwargs=settings, batch_size=args.rows, compute=workers)
    rows.write_parquet(args.output)
