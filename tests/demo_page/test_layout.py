"""What the page shows before anybody asks."""

import json

import pytest

pytest.importorskip("gradio", reason="the page needs gradio: pip install -r requirements-dev.txt")

from cosent.demo_page.layout import build
from cosent.demo_page.models import Judge, Models


def test_what_is_loaded_and_what_is_missing_are_named():
    """Fails if a user does not read on the page which models are loaded, or how to get what is missing."""
    page = json.dumps(build(Models([Judge(None, [], "runs/faq")]), {}).get_config_file(), ensure_ascii=False)
    for words in ("runs/faq", "--text", "--student", "句子文件", "学生模型"):
        assert words in page, words
    assert "报告 Reports" not in page
