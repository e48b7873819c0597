"""A starting folder with what sentence-transformers puts into one."""

import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import BertModel

PROMPTS = {"query": "为这个句子生成表示：", "passage": ""}


@pytest.fixture(scope="session")
def start(tiny_model, tmp_path_factory):
    """A folder by sentence-transformers: BERT with its pooler, pooling, two Dense layers, Normalize, prompts."""
    folder = tmp_path_factory.mktemp("start")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        shutil.copytree(tiny_model, folder / "backbone")
        model = BertModel.from_pretrained(tiny_model)
        model.pooler.dense.bias.data.normal_()
        model.save_pretrained(folder / "backbone")
        model = SentenceTransformer(
            modules=[
                modules.Transformer(str(folder / "backbone"), max_seq_length=24),
                modules.Pooling(32, "mean"),
                modules.Dense(32, 48, bias=False),
                modules.Dense(48, 20, activation_function=torch.nn.GELU()),
                modules.Normalize(),
            ],
            prompts=PROMPTS,
            default_prompt_name="query",
            similarity_fn_name="dot",
            device="cpu",
        )
    model.save(str(folder / "start"))
    return folder / "start"
