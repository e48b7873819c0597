"""A page in the browser to try a model on: similarity with its verdict, search in a file, paraphrases (needs gradio).

python examples/demo.py --model runs/faq --text faq.xlsx --text_column question --student runs/student

Only this machine sees the page, and the page asks no other host.
"""

import argparse
import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
import gradio as gr

from cosent import Index, Student, load_model
from cosent.models.decision import rule_for

HITS = ["句子 sentence", "余弦 cosine", "概率 probability", "这一行 row"]
PAIRS = [["怎么还款", "如何还款"], ["我喜欢北京", "我不喜欢北京"], ["他借给我钱", "我借给他钱"]]


def tab(function, fields: list[str], output, examples: list | None = None) -> gr.Interface:
    boxes = [gr.Textbox(label=field, max_length=1000) for field in fields]
    return gr.Interface(function, boxes, output, examples, cache_examples=False, flagging_mode="never", clear_btn=None)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="similar")
parser.add_argument("--port", type=int, default=7860)
for flag in ("--text", "--text_column", "--student"):
    parser.add_argument(flag)
args = parser.parse_args()
model = load_model(args.model)
rule, _ = rule_for(args.model, model.prompts.sides())


def compare(first: str, second: str) -> str:
    score = float(model.similarity(first, second))
    if rule is None:
        return f"{score:.4f}"
    verdict = "相似 similar" if rule.similar([score])[0] else "不相似 not similar"
    return f"{score:.4f} · {verdict} · {rule.probabilities([score])[0]:.2f}"


def search(query: str) -> list[list]:
    hits = index.search([query], min(10, len(index)))[0]
    return [[hit.sentence, f"{hit.cosine:.4f}", f"{hit.probability or 0:.2f}", str(hit.columns)] for hit in hits]


def paraphrase(text: str) -> list[list]:
    return [[written, f"{cosine:.4f}"] for written, cosine in student.similar_sentences([text], num_samples=60)[0]]


tabs = {"比较 Compare": tab(compare, ["句子一 Sentence 1", "句子二 Sentence 2"], gr.Text(label="分数 Score"), PAIRS)}
if args.text:
    index = Index.load(args.model, [args.text], text_column=args.text_column)
    tabs["搜索 Search"] = tab(search, ["要找什么 What to look for"], gr.Dataframe(headers=HITS, wrap=True))
if args.student:
    student = Student.from_pretrained(args.student)
    tabs["改写 Paraphrase"] = tab(paraphrase, ["句子 Sentence"], gr.Dataframe(headers=HITS[:2]))
page = gr.TabbedInterface([*tabs.values()], [*tabs], title="句子相似度 Sentence similarity")
page.launch(server_port=args.port, theme=gr.themes.Default(font=["sans-serif"], font_mono=["monospace"]))
