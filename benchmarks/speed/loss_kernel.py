"""The CoSENT loss alone, forward and backward, for `count` pairs of binary labels."""

import statistics
import time

import torch


def measure(args) -> dict:
    """Median `calls_per_second` of 15 calls, and the loss."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(args.count, generator=generator, requires_grad=True)
    labels = torch.randint(2, (args.count,), generator=generator).float()
    if args.side == "ours":
        from cosent.losses.cosent import cosent_loss as loss_of
    else:
        from sentence_transformers.sentence_transformer.losses import CoSENTLoss

        theirs = CoSENTLoss(model=torch.nn.Identity(), similarity_fct=lambda a, b: a)

        def loss_of(scores, labels):
            return theirs.compute_loss_from_embeddings([scores, scores], labels)

    times = []
    for _ in range(17):
        scores.grad = None
        start = time.perf_counter()
        loss = loss_of(scores, labels)
        loss.backward()
        times.append(time.perf_counter() - start)
    return {"calls_per_second": 1 / statistics.median(times[2:]), "outputs": [loss.item()]}
