"""python -m topkv.eval: flags to settings, and the table."""

from __future__ import annotations

import shutil
import sys

import torch
from transformers import AutoModelForCausalLM

from topkv import Error, InvalidArgument
from topkv.eval.answer import load_tokenizer
from topkv.eval.evaluate import evaluate
from topkv.eval.options import parser, settings_of
from topkv.eval.table import LEGEND, table_text


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    flags = parser().parse_args(arguments)
    try:
        settings = settings_of(flags)
        options = {"trust_remote_code": flags.trust_remote_code}
        tokenizer = load_tokenizer(flags.model, **options)
        model = AutoModelForCausalLM.from_pretrained(flags.model, dtype=flags.dtype, **options)
        device = flags.device or ("cuda" if torch.cuda.is_available() else "cpu")
        table = evaluate(
            model.to(device), tokenizer, settings,
            output=flags.output, name=flags.model, fresh=flags.fresh, note=_note,
        )
    except InvalidArgument as error:
        _note(f"topkv.eval: {error}")
        return 2
    except (Error, OSError) as error:
        _note(f"topkv.eval: {error}")
        return 1
    except KeyboardInterrupt:
        _note("interrupted: the same command goes on from here")
        return 130
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000
    print(f"{table_text(table, width)}\n{LEGEND}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
