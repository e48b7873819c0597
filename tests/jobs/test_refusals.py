"""Command lines that cannot work: each ends in one message that names the flag, and writes nothing."""

import shlex

import pytest

from cosent.cli import module_of
from cosent.data.writers import table_writer
from cosent.errors import InputError
from tests.conftest import prepare
from tests.support.launching import ROOT

OWN = ROOT / "examples/own_loss.py"

# What the rows of a job below have in common; a row may replace a flag. {name} is a file of the fixture.
COMMON = {
    "train": "--model_name_or_path {tiny} --corpus {made_up} --output_dir {run} --use_cpu true",
    "distill": "--model_name_or_path {student} --corpus {made_up} --output_dir {run} --use_cpu true",
    "generate": "--model {student}",
    "encode": "--model {bi} --text {faq} --output {new}.npy",
    "search": "--model {bi} --text {faq} --query 还款",
} | dict.fromkeys(("dedup", "similarity", "evaluate"), "--model {bi}")
CROSS = "--tower cross_encoder"
TRAIN = [
    ("--limit_train -70", "--limit_train .*-70"),
    ("--limit_validation 0", "--limit_validation .*0"),
    ("--lora_r 4", "--lora_r .*--use_peft true"),
    ("--use_peft true --lora_target_modules query valeu", "--lora_target_modules valeu"),
    ("--use_peft true --lora_r 0", "--lora_r and --lora_alpha must be positive"),
    ("--max_length 0", "max_length"),
    ("--seed -1", "--seed must be from 0 to 4294967295, got -1"),
    ("--limit_seed 4294967296", "--limit_seed must .* got 4294967296"),
    ("--scale -20", "--scale must be above 0, got -20"),
    ("--loss cosine_squared --scale 5", "--scale .*--loss cosine_squared"),
    ("--per_device_train_batch_size 16 --cached_batch_size 40", "--cached_batch_size .*16.*got 40"),
    ("--loss ce", "--loss ce .*cross_encoder"),
    ("--segment_ids zero", "--segment_ids .*--tower bi_encoder"),
    (f"--loss ce3 {CROSS}", "--loss ce3 .*made_up has binary.*ce, bce or cosent"),
    (f"--pooling mean {CROSS}", "--pooling .*--tower cross_encoder"),
    ("--corpus_weights 1", "--corpus_weights"),
    ("--dropout 1.5", "--dropout"),
    ("--train_sampling_strategy group_by_length", "group_by_length"),
    ("--loss cosent_in_batch --loss_args negative_weight=0", "--loss_args negative_weight must be above 0, got 0"),
    ("--loss infonce --loss_args negative_weight=1", "--loss_args negative_weight .*--loss infonce, which has scale"),
    ("--loss cosine_floor --loss_args floor", "--loss_args .*'floor'"),
    ("--loss cosine_floor --loss_args floor=low", "floor=low.* 0.7"),
    ("--scale 2 --loss_args scale=3", "--loss_args .*'scale=3'"),
    ("--loss cosin", "--loss cosin: .*cosent, .*FILE.py:FUNCTION"),
    ("--loss nowhere.py:mine", "no file nowhere.py"),
    ("--loss made_up=cosent infonce", "--loss .*NAME=LOSS.*made_up=cosent infonce"),
    ("--loss stsb=cosent", "--loss names stsb, .* made_up"),
    ("--loss made_up=cosent --corpus {made_up} {grades_corpus}", "--loss names made_up, .*made_up, grades"),
    ("--loss made_up=cosent --loss_args floor=1", "--loss_args floor .*--loss cosent"),
    ("--text {faq} --loss made_up=cosent", "--loss names made_up, .*made_up, text"),
    ("--text {faq} --loss made_up=infonce text=cosent", "--text .*--loss cosent"),
    ("--loss {own}:nothing", "no function 'nothing'"),
    ("--loss {own}:correlation_loss --loss_args heavy=1", "--loss_args heavy .*which has weight"),
    ("--loss {own}:correlation_loss --sbert_classes 3", "--sbert_classes"),
    (f"--metric_for_best_model map {CROSS}", "--metric_for_best_model map"),
    ("--prompt_name query", "'query'"),
    ("--prompt 一 --prompt_name query", "'一' .*'query'"),
    ("--prompt 一 二 三", "--prompt .* got 3"),
    ("--prompt 'Instruct: 检索\\nQuery:'", "--prompt .*backslash"),
    (f"--prompt {'长' * 30} --max_length 32", "32 tokens"),
    (f"--prompt 一 二 {CROSS}", "one prompt"),
    ("--gradient_accumulation_steps 0", "--gradient_accumulation_steps .* 0"),
    ("--deepspeed x.json", "--deepspeed.*--launch"),
    ("--fp16 true", "--fp16 .*CPU.*--bf16"),
    ("--max_grad_norm -1", "--max_grad_norm .*-1"),
    ("--lr_scheduler_type greedy", "--lr_scheduler_type greedy"),
    ("--per_device_train_batch_size 1", "--per_device_train_batch_size 1"),
    ("--train_sampling_strategy sequential --corpus {made_up} {grades_corpus}", "--train_sampling_strategy sequential"),
    ("--num_train_epochs 0", "--num_train_epochs .* got 0"),
    ("--corpus {made_up} {made_up}", "made_up more than once"),
    ("--corpus {one_label}", "have the label 1"),
    ("--corpus {corpus}", "has no train split, only test"),
    ("--corpus {grades_corpus} --loss sbert", "one of 2 classes .*--sbert_classes 3"),
]
OTHERS = [
    ("distill", "--text {faq}", "text has no synonyms .*--teacher"),
    ("distill", "--teacher_prompt 一：", "--teacher_prompt .*--teacher"),
    ("distill", "--prompt 一：", "--prompt"),
    ("distill", "--eval_corpora {made_up} {made_up}", "--eval_corpora names made_up more than once"),
    ("distill", "--corpus {negatives}", "no synonyms in train"),
    ("encode", "--output {faq} --overwrite", "--output .*x.npy"),
    ("encode", "--output {vectors}", "vectors.npy exists.*--overwrite"),
    ("encode", "--device cuda --int8", "CPU"),
    ("encode", "--int8 --dtype bfloat16", "--int8 .*--dtype bfloat16"),
    ("encode", "--text nowhere.txt", "--text: .* nowhere.txt"),
    ("encode", "--prompt 一 二", "--prompt .* 一 二"),
    *(("search", f"--query 还款 '{blank}'", "--query: .* empty") for blank in (" ", "\u200b")),
    ("search", "--top 0", "--top .* 0"),
    ("search", "--min_probability 0.5", "no decision rule.*cosent calibrate"),
    ("search", "--min_score 1 --min_probability 0.5", "--min_score and --min_prob"),
    ("search", "--corpus a", "--corpus a: .*cosent calibrate"),
    ("dedup", "--text {faq} --threshold 95", "--threshold 95"),
    ("dedup", "--text {faq}", "no decision rule.* --threshold"),
    ("dedup", "--text {faq} --threshold 0.9 --output {gold}", "--output .*gold.csv exists.*--overwrite"),
    ("similarity", "--pairs {gold} --output {new}", "gold.csv .* score"),
    ("similarity", "甲 乙 --output {new}", "--output"),
    ("similarity", "甲 乙 --pairs {gold}", "--pairs"),
    ("similarity", "甲 乙 丙", "丙"),
    ("similarity", "甲 \u200b", "甲"),
    ("generate", "\u200b", "empty"),
    ("generate", "甲 --seed 4294967296", "--seed must be from 0"),
    ("serve", "--port 65536", "--port must be from 0 to 65535, got 65536"),
    ("similarity", "甲 乙 --sheet 数据", "--sheet"),
    ("encode", "--text {gap}", "line 2"),
    ("evaluate", "", "--corpus NAME"),
    ("evaluate", "--pairs {gold} --split train", "--split .*--corpus NAME"),
    ("evaluate", "--pairs {words}", "words.csv, line 2: .*got 'perhaps'"),
    ("evaluate", "--pairs {huge}", "huge.csv, line 2: .*got '1e39'"),
    ("evaluate", "--pairs {odd}", "odd.csv, line 1: .*'是否相同'.*--text_columns.* --label_column"),
    ("evaluate", "--pairs {gold} --label_column same", "same"),
    ("evaluate", "--pairs {gold} --text_columns sentence1", "--text_columns"),
    ("evaluate", "--pairs {faq}", "faq.txt, line 1: "),
    ("evaluate", "--corpus {corpus} --queries {gold}", "--queries FILE"),
    ("evaluate", "--text {faq}", "--queries FILE"),
    ("evaluate", "--text {faq} --queries {gold} --split train", "--split"),
    ("evaluate", "--text {faq} --queries {gold} --retrieval false", "--retrieval"),
    ("evaluate", "--corpus {corpus} --text_column question", "--text_column .*--text"),
    ("evaluate", "--text {faq} --queries {odd}", "odd.csv, line 1"),
    ("report", "nowhere", "holds no results"),
    ("audit", "lcqmc", "cosent prepare"),
    ("audit", ".", "cosent prepare"),
]


@pytest.fixture
def files(tmp_path, tiny_model, tiny_bi, tiny_cross, tiny_student, made_up, pairs) -> dict:
    """Files by the names of the table; `new` and `run` are not there."""
    texts = {"faq": "怎么还款\n如何还款\n", "gap": "一\n\n二\n"}
    texts["plain"] = "".join(f"红{'的' * n}苹果\n" for n in range(12))
    paths = {"new": tmp_path / "new.csv", "run": tmp_path / "run", "made_up": made_up}
    paths |= {"tiny": tiny_model, "bi": tiny_bi, "cross": tiny_cross, "student": tiny_student, "own": OWN}
    for name, text in texts.items():
        paths[name] = tmp_path / f"{name}.txt"
        paths[name].write_text(text, encoding="utf-8")
    for name, label in (("gold", 1), ("grades", 3), ("words", "perhaps"), ("huge", "1e39")):
        paths[name] = tmp_path / f"{name}.csv"
        with table_writer(paths[name], ("sentence1", "sentence2", "score")) as write:
            write([{"sentence1": "甲", "sentence2": "乙", "score": label}])
    paths["vectors"] = tmp_path / "vectors.npy"
    paths["vectors"].write_bytes(b"precious")
    paths["odd"] = tmp_path / "odd.csv"
    paths["odd"].write_text("问题甲,问题乙,是否相同\n甲,乙,1\n", encoding="utf-8")
    paths["corpus"] = prepare(tmp_path / "faq", {"test": [("甲", "乙", 1.0)]}, "binary", 1.0)
    for name, label, kind in (("one_label", 1.0, "binary"), ("negatives", 0.0, "binary")):
        rows = [(first, second, label) for first, second, _ in pairs]
        paths[name] = prepare(tmp_path / name, {"train": rows}, kind, 1.0)
    graded = {"train": [(first, second, 2.5 * label) for first, second, label in pairs]}
    return paths | {"grades_corpus": prepare(tmp_path / "grades_corpus", graded, "graded", 5.0)}


def test_what_is_refused(files, job, tmp_path, tmp_path_factory, monkeypatch):
    """Fails if a flag that cannot work is ignored, guessed at, ends in a trace, or is noticed after hours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    before = sorted(tmp_path.rglob("*"))
    wrong = []
    for name, flags, message in [*(("train", *row) for row in TRAIN), *OTHERS]:
        common = [flag for flag in COMMON.get(name, "").split("--")[1:] if f"--{flag.split()[0]}" not in flags.split()]
        words = shlex.split(" --".join((flags, *common)).format(**files))
        try:
            with pytest.raises(InputError, match=message):
                job(module_of(name), *words)
        except (Exception, pytest.fail.Exception) as error:
            wrong.append(f"{name} {flags}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert not (tmp_path / "run/run.json").exists()
    assert [path for path in sorted(tmp_path.rglob("*")) if tmp_path / "run" not in (path, path.parent)] == before
