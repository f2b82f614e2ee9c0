"""Each name that is gone is answered with what to use instead, typed or in a YAML file."""

import pytest

from penstock.config.familiar import GONE
from tests.support.program import run


@pytest.mark.parametrize("name", GONE)
def test_a_name_that_is_gone_is_answered_by_its_row(name, capsys, tmp_path):
    word = name.replace("*", "x")
    if not word.startswith("--") and "=" not in word:
        word = f"{word}=1"
    done = run(capsys, *word.split(), "trainer.max_epoch=1")
    assert done.code == 2, done.err
    assert GONE[name] in done.err
    assert "unknown key; here that is trainer.max_epochs" in done.err or word.startswith("--")
    if word.startswith("--"):
        return
    *above, key = word.partition("=")[0].split(".")
    value = word.partition("=")[2]
    text = "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(above))
    text = f"defaults: [config, _self_]\n{text}{'  ' * len(above)}{key}: {value}\n"
    if not above and "=" in name:
        text = f"defaults: [config, {{override {key}: {value}}}, _self_]\n"
    (tmp_path / "mine.yaml").write_text(text)
    done = run(capsys, "--config-dir", str(tmp_path), "--config-name", "mine")
    assert done.code == 2, done.err
    assert GONE[name] in done.err
