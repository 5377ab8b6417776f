"""Trains a small Llama to find, repeat and chain facts in long text: a model like needle-14m.

    python tools/train_needle --text FOLDER --out DIR

FOLDER holds .txt files (UTF-8), at least some megabytes for a model of any use. DIR becomes a
Hugging Face directory (config.json, model.safetensors in bfloat16, tokenizer.json,
generation_config.json) that topkv and transformers load; checkpoint.pt in it is for --resume.

The defaults are those of needle-14m: 14 M parameters, texts of 4 Ki to 256 Ki tokens, positions to
1 Mi. They want one GPU with flash attention; a row of 256 Ki tokens is estimated to need 20 GB of
it. A short run on a CPU, to see that all is well:

    python tools/train_needle --text FOLDER --out /tmp/tiny --layers 2 --hidden 64 --heads 2 \\
        --kv-heads 1 --head-dim 32 --intermediate 128 --vocab 512 --lengths 512 \\
        --tokens-per-step 4096 --steps 20 --reach 8192

Needs tools/requirements.txt; transformers is not used.
"""

import argparse
import os
import random
import signal
from dataclasses import asdict
from pathlib import Path

import tokenizers
import torch

import data
import evaluate
import tasks
from model import Llama, Shape, save
from progress import Progress

CHECKPOINT = "checkpoint.pt"

def arguments():
    parser = argparse.ArgumentParser(prog="train_needle", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = Shape()
    add = parser.add_argument
    add("--text", type=Path, help="folder of .txt files")
    add("--out", type=Path, help="folder for the model")
    add("--tokenizer", type=Path, help="use this tokenizer.json instead of training one")
    add("--resume", action="store_true", help="go on from the checkpoint in --out")
    add("--self-check", action="store_true", help="check the task generators and stop")
    for name, value in asdict(shape).items():
        add("--" + name.replace("_", "-"), type=type(value), default=value,
            help=f"default {value:g}")
    add("--lengths", default="4096,16384,65536,262144",
        help="tokens of a sample, rising over the run; default %(default)s")
    add("--steps", type=int, default=12000, help="default %(default)s")
    add("--tokens-per-step", type=int, default=524288, help="default %(default)s")
    add("--tokens-at-once", type=int, default=262144,
        help="tokens of one forward pass (bounds GPU memory); default %(default)s")
    add("--lr", type=float, default=2e-3, help="peak learning rate; default %(default)s")
    add("--seed", type=int, default=0)
    add("--workers", type=int, default=min(4, os.cpu_count() or 1),
        help="processes that make samples; default %(default)s")
    add("--eval-every", type=int, default=500, help="steps; default %(default)s")
    add("--save-every", type=int, default=500, help="steps; default %(default)s")
    add("--log-every", type=int, default=10, help="steps between lines in a pipe")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if not options.self_check and (options.text is None or options.out is None):
        parser.error("--text and --out are needed")
    return options


def plan_of(options):
    """(rows, length) of every step. Each length gets an equal share of the steps, in rising order;
    a quarter of the steps are as short as an earlier share's, so that short texts stay known."""
    try:
        lengths = sorted(int(part) for part in options.lengths.split(","))
    except ValueError:
        raise SystemExit(f"--lengths {options.lengths}: expected numbers with commas") from None
    if lengths[0] < 256:
        raise SystemExit(f"--lengths: {lengths[0]} is below 256, too short for a task")
    if lengths[-1] > options.reach:
        raise SystemExit(f"--lengths: {lengths[-1]} is beyond --reach {options.reach}")
    if lengths[-1] > options.tokens_per_step:
        raise SystemExit(f"--lengths: {lengths[-1]} is more than --tokens-per-step "
                         f"{options.tokens_per_step}")
    rng = random.Random(options.seed)
    plan = []
    for step in range(options.steps):
        stage = step * len(lengths) // options.steps
        if stage and rng.random() < 0.25:
            stage = rng.randrange(stage)
        plan.append((options.tokens_per_step // lengths[stage], lengths[stage]))
    return plan


def rate_at(step, options):
    """Warmup over 2 %, constant, then linearly down over the last 20 % (WSD, Hu et al. 2024)."""
    warmup, decay = max(1, options.steps // 50), max(1, options.steps // 5)
    return options.lr * min(1.0, (step + 1) / warmup, (options.steps - step) / decay)


def optimizer_of(model, options):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=options.lr, betas=(0.9, 0.95))


def train_step(model, optimizer, batch, options):
    """One update. Returns the mean loss of ordinary tokens and of answers."""
    device = torch.device(options.device)
    ids, weights, _ = batch  # and positions
    rows_at_once = max(1, options.tokens_at_once // ids.shape[1])
    total = float(weights[:, 1:].sum())
    sums = torch.zeros(2, 2, dtype=torch.float64)  # [text, answers] x [loss, tokens]
    optimizer.zero_grad(set_to_none=True)
    for part in zip(*(x.split(rows_at_once) for x in batch)):
        i, w, p = (x.to(device, non_blocking=True) for x in part)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses = model.losses(i, p)
        w = w[:, 1:]
        ((losses * w).sum() / total).backward()
        for kind, mask in enumerate((w == 1, w > 1)):
            sums[kind] += torch.stack((losses.detach()[mask].sum(), mask.sum())).cpu()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        raise SystemExit("the gradient is not finite; lower --lr and --resume")
    optimizer.step()
    loss = sums[:, 0] / sums[:, 1].clamp(min=1)
    return float(loss[0]), float(loss[1])


def checkpoint(path, model, optimizer, step, options, tokenizer):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
             "options": run_options(options), "tokenizer": tokenizer.to_str()}
    partial = path.with_suffix(".partial")  # a crash must not leave half a checkpoint behind
    torch.save(state, partial)
    partial.replace(path)


def run_options(options):
    """What a resumed run must have in common with the first."""
    names = list(asdict(Shape())) + ["lengths", "steps", "tokens_per_step", "lr", "seed"]
    return {name: getattr(options, name) for name in names}


def read_checkpoint(path, options):
    state = torch.load(path, map_location=options.device, weights_only=True)
    for name, value in run_options(options).items():
        if state["options"][name] != value:
            raise SystemExit(f"{path}: was made with --{name.replace('_', '-')} "
                             f"{state['options'][name]}, now it is {value}")
    return state


def tokenizer_for(options, state, texts, words):
    if state is not None:
        return tokenizers.Tokenizer.from_str(state["tokenizer"])
    if options.tokenizer is None:
        return data.train_tokenizer(texts, words, options.vocab, options.seed)
    if not options.tokenizer.is_file():
        raise SystemExit(f"{options.tokenizer}: no such file")
    tokenizer = tokenizers.Tokenizer.from_file(str(options.tokenizer))
    data.check_tokenizer(tokenizer, options.tokenizer)
    if tokenizer.get_vocab_size() != options.vocab:
        raise SystemExit(f"{options.tokenizer}: has {tokenizer.get_vocab_size()} tokens; say "
                         f"--vocab {tokenizer.get_vocab_size()}")
    return tokenizer


def main():
    options = arguments()
    if options.self_check:
        tasks.self_check([f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(400)])
        print("every answer follows from its facts")
        return
    shape = Shape(**{name: getattr(options, name) for name in asdict(Shape())})
    shape.check()
    plan = plan_of(options)
    path = options.out / CHECKPOINT
    if path.exists() != options.resume:
        raise SystemExit(f"{path}: " + ("nothing to resume" if options.resume else
                                        "exists; say --resume or choose another --out"))
    torch.manual_seed(options.seed)
    state = read_checkpoint(path, options) if options.resume else None
    texts = data.read_texts(options.text)
    words = data.common_words(texts)
    tokenizer = tokenizer_for(options, state, texts, words)
    corpus = data.tokenize(tokenizer, texts, words)
    sampler = data.Sampler(tokenizer, corpus)
    model = Llama(shape).to(options.device).train()
    optimizer = optimizer_of(model, options)
    first = 0
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        del state
    options.out.mkdir(parents=True, exist_ok=True)
    train(options, plan, first, model, optimizer, sampler, tokenizer)


def train(options, plan, first, model, optimizer, sampler, tokenizer):
    """The steps of the plan from `first` on. Ctrl-C ends after the step in hand, and saves."""
    stop = []
    signal.signal(signal.SIGINT, lambda *_: stop.append(True))  # before workers start: theirs too
    tokens = [rows * length for rows, length in plan]
    progress = Progress(sum(tokens), sum(tokens[:first]), options.log_every)
    progress.say(f"{sum(p.numel() for p in model.parameters()):,} parameters, "
                 f"{len(sampler.corpus.ids):,} tokens of text, {sum(tokens):,} tokens to train on "
                 f"({options.device}), from step {first}")
    batches = torch.utils.data.DataLoader(
        data.Steps(sampler, plan, options.reach, options.seed), batch_size=None,
        sampler=range(first, len(plan)), num_workers=options.workers,
        pin_memory=options.device.startswith("cuda"))
    done = sum(tokens[:first])
    for step, batch in zip(range(first, len(plan)), batches):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, options)
        text_loss, answer_loss = train_step(model, optimizer, batch, options)
        done += tokens[step]
        progress.update(done, f"step {step + 1}/{len(plan)}  length {plan[step][1]}  "
                              f"loss text {text_loss:.3f} answers {answer_loss:.3f}")
        last = step + 1 == len(plan)
        if last or (step + 1) % options.eval_every == 0:
            seen = sorted({length for _, length in plan[:step + 1]})
            found = [f"{length}: {evaluate.needles(model, sampler, length)}/8" for length in seen]
            progress.say(f"step {step + 1}  needles found  " + "  ".join(found))
        if last or stop or (step + 1) % options.save_every == 0:
            checkpoint(options.out / CHECKPOINT, model, optimizer, step + 1, options, tokenizer)
            save(model, tokenizer, options.out, data.BOS, data.EOS)
        if stop and not last:
            raise SystemExit(f"stopped after step {step + 1}; --resume goes on from there")


if __name__ == "__main__":
    main()
