"""Average the weights of models that were trained from one start: a model soup, at the cost of a single model.

python examples/soup.py runs/seed1 runs/seed2 runs/seed3 runs/soup
cosent calibrate --model runs/soup --corpus faq --output runs/soup_calibrated        threshold and probabilities

Bi-encoders or cross-encoders; the last folder is the new one.
"""

import sys
from pathlib import Path

import torch

from cosent import load_model

*members, output = sys.argv[1:]
if not members or Path(output).exists():
    sys.exit(f"Give the folders of models, and a new folder at the end; {output} exists or is the only one.")
models = [load_model(member) for member in members]
states = [model.state_dict() for model in models]
for member, model, state in zip(members, models, states, strict=True):
    if (model.rules, model.prompts, [*state]) != (models[0].rules, models[0].prompts, [*states[0]]):
        sys.exit(f"{member} and {members[0]} differ in pooling, length, tokenizer, prompt or layers: no mean.")
mean = {name: torch.stack([state[name].double() for state in states]).mean(dim=0) for name in states[0]}
models[0].load_state_dict({name: weight.to(states[0][name].dtype) for name, weight in mean.items()})
models[0].save_pretrained(output)
