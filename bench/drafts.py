#!/usr/bin/env python3
"""Drafts from the text itself: what answers over long texts gain, and whether they stay the same.

Cuts each file into passages and reads each into a context. Asks five things of it, as a user would, in the model's chat
template if it has one: to repeat a paragraph, to go on with a repetition that was cut off after 40 words, to write the text
again with a word replaced, to sum it up, and a question. Each is answered greedily without drafts and with them.

Writes a CSV row for each file and task: prompts, answers that differ, and of the prompts that were timed their number,
tokens of a step, the share of drafted tokens that were accepted, tokens a second without and with drafts, and their ratio.
`cpu_ratio` is the ratio of the CPU time that the process took after the first token of each answer, without drafts to with
them. Other programs on the machine change it less than the rates.
`quoting` counts the timed answers that have at least --quoted tokens in a row of the passage; rows `TASK, quoting` and
`TASK, others` are about these answers and the others alone. The last rows are about all files. Ends with status 1 if an
answer differs.

The first --timed passages of each file are answered alone. The others are for the comparison of answers: several threads
answer them at the same time.

    python3 bench/drafts.py MODEL essays.txt /usr/lib/python3.11/argparse.py --passages 20 --timed 5
"""

import argparse
import collections
import concurrent.futures
import csv
import pathlib
import random
import re
import sys
import time

import numpy as np

import topkv

WORD = re.compile(r"[A-Za-z_]{5,}")
TASKS = ["quote", "continue", "edit", "summary", "question"]


def paragraphs_of(passage):
    """Paragraphs that begin within the passage and have ten words at least; else such lines."""
    for separator in ("\n\n", "\n"):
        parts = [part.strip() for part in passage.split(separator)[1:-1]]
        parts = [part for part in parts if len(part.split()) >= 10]
        if parts:
            return parts
    return [passage.strip()]


def requests_of(passage, draw):
    """What is asked of a passage, by task: (in a chat, begin of the answer, of a model without a chat template)."""
    paragraph = draw.choice(paragraphs_of(passage))
    start = " ".join(paragraph.split()[:8])
    # The begin of the paragraph and of what follows it, as it stands in the passage.
    words = re.match(r"(\S+\s+){,39}\S+", passage[passage.index(paragraph) :])[0]
    repeat = f'Repeat word for word the text above, from the paragraph that begins with "{start}" to the end.'
    common = collections.Counter(WORD.findall(passage)).most_common(12)
    word = draw.choice(common)[0] if common else "text"
    first = passage.strip().splitlines()[0]
    return {
        "quote": (
            f'Repeat word for word the paragraph of the text above that begins with "{start}".',
            "",
            f"\n\nThe paragraph of the text above that begins with \"{start}\", word for word:\n\n{start}",
        ),
        "continue": (repeat, words, f"\n\nThe text above, from the middle on, word for word:\n\n{words}"),
        "edit": (
            f'Write the text above again, with the word "{word}" replaced by "{word}2". Change nothing else.',
            "",
            f"\n\nThe same text again, with {word} replaced by {word}2:\n\n{first.replace(word, word + '2')}\n",
        ),
        "summary": (
            "Summarise the text above in three sentences.",
            "",
            "\n\nA summary of the text above in three sentences:\n\n",
        ),
        "question": (
            f'What does the text above say about "{word}"? Quote the sentence that says it.',
            "",
            f"\n\nQuestion: What does the text above say about {word}?\nAnswer:",
        ),
    }


def longest_common(answer, passage):
    """Tokens of the longest part of an answer that is a part of the passage, too."""
    passage = np.asarray(passage)
    ends = np.zeros(len(passage) + 1, dtype=np.int64)  # common tokens that end before each place
    longest = 0
    for token in answer:
        ends[1:] = np.where(passage == token, ends[:-1] + 1, 0)
        longest = max(longest, int(ends.max()))
    return longest


class Bench:
    def __init__(self, options):
        self.options = options
        self.device = topkv.Device.open(options.device)
        self.model = topkv.Model.load(options.model, self.device)
        self.tokenizer = self.model.tokenizer()
        try:
            self.template = None if options.no_chat else topkv.ChatTemplate.load(options.model)
        except topkv.Error:  # a model without one
            self.template = None

    def passages_of(self, path, draw):
        """Some passages of a file, in order of their places, which are drawn."""
        size, count = self.options.tokens, self.options.passages
        tokens = self.tokenizer.encode(path.read_text(errors="replace"))
        places = len(tokens) // size
        if places == 0:
            sys.exit(f"drafts.py: {path} has {len(tokens)} tokens, fewer than a passage of {size}")
        for place in sorted(draw.sample(range(places), min(count, places))):
            yield tokens[place * size : (place + 1) * size]

    def prompts_of(self, passage, draw):
        """The tokens of the context, and (task, tokens of the prompt) for each prompt."""
        text = self.tokenizer.decode(passage)
        asked = [request for _ in range(self.options.each) for request in requests_of(text, draw).items()]
        if self.template is None:
            return passage, [(task, self.tokenizer.encode(plain)) for task, (_, _, plain) in asked]
        mark = "\N{OBJECT REPLACEMENT CHARACTER}"
        rendered = [
            self.template.render([{"role": "user", "content": f"{mark}\n\n{chat}"}], add_generation_prompt=True) + begun
            for _, (chat, begun, _) in asked
        ]
        begin = rendered[0].split(mark)[0]
        return self.tokenizer.encode(begin) + passage, [
            (task, self.tokenizer.encode(whole.split(mark)[1])) for (task, _), whole in zip(asked, rendered)
        ]

    def read(self, tokens):
        return self.model.prefill(tokens, "window").ready_for(self.options.index)

    def answer(self, context, prompt, draft):
        options = self.options
        session = topkv.Session(context, self.device, index=options.index, k=options.k, window=options.window)
        began = []  # CPU time at the first token

        def note(_):
            if not began:
                began.append(time.process_time())

        result = self.model.generate(
            session, prompt, max_tokens=options.answer, temperature=0, draft=draft, on_token=note
        )
        ended = time.process_time()
        return result, ended - began[0] if began else 0.0

    def compare(self, job, timed):
        """[(task, {what is counted})] of a passage."""
        passage, seed = job
        read, prompts = self.prompts_of(passage, random.Random(seed))
        context = self.read(read)
        rows = []
        for number, (task, prompt) in enumerate(prompts):
            results = {}
            # The first of the two has cold memory: they take turns in being first.
            for draft in ["none", self.options.draft][:: 1 if number % 2 == 0 else -1]:
                results[draft] = self.answer(context, prompt, draft)
            (plain, plain_cpu), (drafted, drafted_cpu) = results["none"], results[self.options.draft]
            row = {"prompts": 1, "differ": plain.tokens != drafted.tokens}
            quotes = longest_common(plain.tokens, passage) >= self.options.quoted
            if timed:
                row |= {
                    "timed": 1, "quoting": quotes, "fed": drafted.steps, "steps": drafted.steps - drafted.accepted,
                    "drafted": drafted.drafted, "accepted": drafted.accepted,
                    "none_s": plain.decode_seconds, "draft_s": drafted.decode_seconds,
                    "none_cpu_s": plain_cpu, "draft_cpu_s": drafted_cpu,
                }  # fmt: skip
            rows.append((task, row))
            if timed:
                rows.append((f"{task}, {'quoting' if quotes else 'others'}", row))
            if self.options.print:
                print(f"--- {task} {row}\n{self.tokenizer.decode(plain.tokens)}", file=sys.stderr)
        return rows


def row_of(name, task, sums):
    of = lambda key: sums.get(key, 0)
    ratio = lambda a, b, digits: f"{a / b:.{digits}f}" if b else ""
    return [
        name, task, int(of("prompts")), int(of("differ")), int(of("timed")), int(of("quoting")),
        ratio(of("fed"), of("steps"), 2), ratio(of("accepted"), of("drafted"), 2),
        ratio(of("fed"), of("none_s"), 1), ratio(of("fed"), of("draft_s"), 1), ratio(of("none_s"), of("draft_s"), 2),
        ratio(of("none_cpu_s"), of("draft_cpu_s"), 2),
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--passages", type=int, default=20, help="of each text")
    parser.add_argument("--timed", type=int, default=20, help="passages of each text that are answered alone")
    parser.add_argument("--each", type=int, default=1, help="prompts of each task for a passage")
    parser.add_argument("--at-once", type=int, default=16, help="passages that are compared at the same time")
    parser.add_argument("--tokens", type=int, default=1024, help="of a passage")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--quoted", type=int, default=32, help="tokens in a row that make an answer a quotation")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--index", default="codes:k=32,v=8")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draft", default="auto", help="what is compared with none")
    parser.add_argument("--no-chat", action="store_true", help="ask as of a model without a chat template")
    parser.add_argument("--print", action="store_true", help="print the answers")
    options = parser.parse_args()

    bench = Bench(options)
    rows = csv.writer(sys.stdout)
    rows.writerow(
        "text task prompts differ timed quoting tokens_a_step accepted none_tokens_s draft_tokens_s ratio cpu_ratio".split()
    )
    everything = collections.defaultdict(collections.Counter)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.at_once) as threads:
        for number, path in enumerate(options.texts):
            draw = random.Random(f"{options.seed} {number}")
            jobs = [(passage, draw.random()) for passage in bench.passages_of(path, draw)]
            sums = collections.defaultdict(collections.Counter)
            done = [bench.compare(job, True) for job in jobs[: options.timed]]
            done += threads.map(lambda job: bench.compare(job, False), jobs[options.timed :])
            for task, row in (each for one in done for each in one):
                sums[task].update(row)
                everything[task].update(row)
            for task in sorted(sums):
                rows.writerow(row_of(path.name, task, sums[task]))
            sys.stdout.flush()
            print(f"{path.name}: {len(jobs)} passages, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for task in sorted(everything):
        rows.writerow(row_of("all", task, everything[task]))
    differ = sum(everything[task]["differ"] for task in TASKS)
    print(f"{sum(everything[task]['prompts'] for task in TASKS)} prompts, {differ} differ", file=sys.stderr)
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
