"""Tables of studies in README and docs."""

import json

from cosent.reporting.readme_tables import study_table
from cosent.studies.results import read_results


def test_a_study_on_paper(tmp_path):
    """Fails if mean, deviation or floor of the README are wrong: 0.6 and 0.7 give 65.00 ± 7.07.

    The results are those of a version that counted neither processes nor parameters, and scores were not kept.
    """
    recipe = {"model_name_or_path": "mini", "pooling": "mean", "per_device_train_batch_size": 32}
    recipe |= {"learning_rate": 5e-4, "num_train_epochs": 6}
    (tmp_path / "study").mkdir()
    for seed, spearman in ((1, 0.6), (2, 0.7)):
        run = {"after": {"stsb": {"test": {"spearman": spearman}}}, "train_seconds": 90, "before": {}, "corpora": {}}
        run |= {"recipe": recipe | {"seed": seed}, "device": "CPU", "commit": "c" * 40, "threads": 1, "versions": {}}
        run |= {"study": {"method": "cosent", "corpus": "stsb", "seed": seed, "flags": {}}}
        run |= {"speed": {}, "validation_curve": [[1.0, spearman]]}
        (tmp_path / "study" / f"cosent-stsb-{seed}.json").write_text(json.dumps(run))
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "stsb.json").write_text(json.dumps({"splits": {"test": {"overlap_spearman": 58.68}}}))
    lines = study_table(read_results(tmp_path / "study")).splitlines()
    assert lines[0] == "| test Spearman x100, mean ± std | stsb | seeds | minutes per run |"
    assert lines[2:4] == ["| character overlap, no model | 58.68 |  |  |", "| cosent | 65.00 ± 7.07 | 2 | 1.5 |"]
    assert lines[-1].startswith("`mini` encoder, mean pooling, batch 32, learning rate 0.0005, 6 epochs, best")
    assert lines[-1].endswith("CPU, commit cccccccccc.")


def test_adapters_show_what_they_save(make_study):
    """Fails if a table of LoRA runs hides the share of the weights that was trained, or their memory: 1 of 4 is 25%."""
    folder = make_study({"full": 1.0, "lora": 1.0}, seeds=(1,))
    for name, trained in (("full", 400), ("lora", 100)):
        file = folder / f"{name}-lcqmc-1.json"
        record = json.loads(file.read_text())
        record["footprint"] = {"parameters": 400, "trainable_parameters": trained, "optimizer_mib": 1, "peak_mib": 640}
        file.write_text(json.dumps(record))
    text = study_table(read_results(folder))
    assert "| minutes per run | weights trained | peak MiB |" in text
    assert "| 1.5 | 100.0% | 640 |" in text and "| 1.5 | 25.0% | 640 |" in text
