#!/usr/bin/env python3
"""Drafts from the text itself: what answers over long texts gain, and whether they stay the same.

Cuts each file into passages, reads each into a context, and asks four things of it: to quote it from a place within, to
write it again with a word changed, to sum it up, and a question. Each is answered greedily without drafts and with them,
in turn. Writes a CSV row for each file and task: prompts, answers that differ, tokens of a step, the share of drafted
tokens that were accepted, tokens a second without and with drafts, and their ratio. Ends with status 1 if an answer
differs.

    python3 bench/drafts.py MODEL essays.txt /usr/lib/python3.11/argparse.py --passages 20
"""

import argparse
import collections
import csv
import pathlib
import random
import re
import sys

import numpy as np

import topkv

WORD = re.compile(r"[A-Za-z_]{5,}")


def prompts_of(passage, draw):
    """The four prompts, by name."""
    lines = [line for line in passage.splitlines() if len(line.split()) >= 4] or [passage]
    line = draw.choice(lines[len(lines) // 4 : len(lines) * 3 // 4] or lines)
    start = " ".join(line.split()[:4])
    words = collections.Counter(WORD.findall(passage))
    word = words.most_common(3)[-1][0] if words else "it"
    first = next(line for line in lines if line.strip())
    return {
        "quote": f"\n\nA quotation from the text above, word for word:\n{line[: line.find(start.split()[-1])]}"
        f"{start.split()[-1]}",
        "edit": f"\n\nThe same text again, with {word} replaced by {word}2:\n{first.replace(word, word + '2')}\n",
        "summary": "\n\nA summary of the text above in a few sentences:\n",
        "question": f"\n\nQuestion: What does the text above say about {word}?\nAnswer:",
    }


def passages_of(path, tokens_of, count, size, draw):
    """Some passages of `size` tokens, in order of their places, which are drawn."""
    tokens = tokens_of(path.read_text(errors="replace"))
    places = len(tokens) // size
    if places == 0:
        sys.exit(f"drafts.py: {path} has {len(tokens)} tokens, fewer than a passage of {size}")
    for place in sorted(draw.sample(range(places), min(count, places))):
        yield tokens[place * size : (place + 1) * size]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--passages", type=int, default=20, help="of each text")
    parser.add_argument("--tokens", type=int, default=2048, help="of a passage")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--index", default="codes:k=32,v=8")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draft", default="auto", help="what is compared with none")
    options = parser.parse_args()

    device = topkv.Device.open(options.device)
    model = topkv.Model.load(options.model, device)
    tokenizer = model.tokenizer()
    draw = random.Random(options.seed)
    rows = csv.writer(sys.stdout)
    rows.writerow("text task prompts differ tokens_a_step accepted none_tokens_s draft_tokens_s ratio".split())
    differing = 0
    for path in options.texts:
        sums = collections.defaultdict(lambda: np.zeros(8))
        passages = list(passages_of(path, tokenizer.encode, options.passages, options.tokens, draw))
        for number, passage in enumerate(passages):
            context = model.prefill(passage, "window").ready_for(options.index)
            for task, prompt in prompts_of(tokenizer.decode(passage), draw).items():
                fed = tokenizer.encode(prompt)
                results = {}
                # The first of the two has cold memory: they take turns in being first.
                for draft in ["none", options.draft][:: 1 if number % 2 == 0 else -1]:
                    session = topkv.Session(
                        context, device, index=options.index, k=options.k, window=options.window
                    )
                    results[draft] = model.generate(
                        session, fed, max_tokens=options.answer, temperature=0, draft=draft
                    )
                plain, drafted = results["none"], results[options.draft]
                steps = [r.steps - r.accepted for r in (plain, drafted)]
                same = plain.tokens == drafted.tokens
                sums[task] += [
                    1, not same, drafted.steps, steps[1], drafted.accepted, drafted.drafted,
                    plain.decode_seconds, drafted.decode_seconds,
                ]  # fmt: skip
            print(f"{path.name}: {number + 1} of {len(passages)} passages", file=sys.stderr, flush=True)
        for task, (prompts, differ, fed, steps, accepted, drafted, none_s, draft_s) in sums.items():
            rows.writerow([
                path.name, task, int(prompts), int(differ), f"{fed / max(steps, 1):.2f}",
                f"{accepted / drafted:.2f}" if drafted else "",
                f"{fed / none_s:.1f}", f"{fed / draft_s:.1f}", f"{none_s / draft_s:.2f}",
            ])  # fmt: skip
            differing += int(differ)
        sys.stdout.flush()
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
