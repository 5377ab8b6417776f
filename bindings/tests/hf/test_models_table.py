"""The table of refused model types in docs/reference/transformers.md is what TopkCache refuses."""

import re
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from conftest import REPOSITORY
from topkv import Unsupported, hf

sys.path.insert(0, str(REPOSITORY / "tools"))
import transformers_models as tool

PAGE = (REPOSITORY / "docs" / "reference" / "transformers.md").read_text()
HEADING = re.search(r"### Refused model types of transformers (\d+\.\d+)\n", PAGE)


def table():
    """The model types of each reason."""
    rows = re.findall(r"^\| (.+) \| (\d+) \| (`.+`) \|$", PAGE[HEADING.end() :], re.MULTILINE)
    found = {reason: re.findall(r"`([^`]+)`", types) for reason, _, types in rows}
    assert [len(x) for x in found.values()] == [int(count) for _, count, _ in rows]
    return found


def refusal(model_type):
    """Why the model type is refused, "" if it is taken, None if there is no small config of it."""
    try:
        config = tool.tiny(transformers.CONFIG_MAPPING[model_type])
    except Exception:
        try:
            config = transformers.CONFIG_MAPPING[model_type]()
        except Exception:
            return None
    try:
        hf.check(config)
    except Unsupported as error:
        return tool.reason_of(str(error))
    except Exception:  # a config that does not say what its layers are
        return None
    return ""


@pytest.mark.skipif(
    not transformers.__version__.startswith(HEADING[1] + "."), reason="the table is of another version"
)
def test_the_table_has_what_is_refused():
    listed = {model_type: reason for reason, types in table().items() for model_type in types}
    assert len(listed) > 40
    for model_type in sorted(tool.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        reason = refusal(model_type)
        # Some are refused at the first call. Some models change the config that they are made with.
        if reason is not None and reason != listed.get(model_type, ""):
            outcome, detail = tool.outcome_of(model_type, {})
            assert outcome in ("equal", "refused"), (model_type, detail)
            reason = tool.reason_of(detail) if outcome == "refused" else ""
        if reason is not None:
            assert listed.get(model_type, "") == reason, model_type
