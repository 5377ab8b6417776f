"""topkv.eval: the samples of `topkv eval`, answered through transformers."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import EAGER, make_config
from tokenizers import processors
from topkv.eval import Settings, _core, evaluate
from topkv.eval.__main__ import main
from topkv.eval.answer import Asked, beginning_of, encode_of, greedy, load_tokenizer
from topkv.eval.table import table_text
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

METHODS = """
import torch

class Largest:
    def search(self, queries, keys, k, scale):
        return (queries @ keys.T).topk(k).indices

class All:
    def search(self, queries, keys, k, scale):
        return torch.arange(k)

class Nothing:
    pass
"""
REPOSITORY = Path(__file__).resolve().parents[3]
ALL_TASKS = _core.parse_tasks("ruler,passkey,passkey_steps,repetition,tables,mrcr,text2json,html_to_tsv,multineedle")


@pytest.fixture(scope="module")
def tokenizer(needle_14m):
    return load_tokenizer(str(needle_14m))


@pytest.fixture(scope="module")
def model(needle_14m):
    return AutoModelForCausalLM.from_pretrained(needle_14m, dtype=torch.float32).eval()


@pytest.fixture
def methods(tmp_path):
    (tmp_path / "methods.py").write_text(METHODS)
    return str(tmp_path / "methods.py")


def small(**settings):
    return Settings(
        **{"tasks": ["passkey"], "lengths": [400], "samples": 1, "budgets": [8], "window": 64}
        | settings
    )


def answers(folder):
    lines = (Path(folder) / "samples.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_package_has_all_names_of_the_module():
    def public(module):
        return {name for name in dir(module) if not name.startswith("_")}

    assert public(_core) == public(topkv._core._eval)


def test_samples_have_the_tokens_of_topkv_s_own_tokenizer(needle_14m, tokenizer):
    own = topkv.Tokenizer.load(needle_14m / "tokenizer.json")
    theirs = _core.make_tasks(ALL_TASKS, encode_of(tokenizer), beginning_of(tokenizer))
    ours = _core.make_tasks(ALL_TASKS, own.encode, [])  # its texts begin with no BOS
    for a, b in zip(theirs, ours, strict=True):
        for length, number in ((3000, 0), (3000, 1), (3500, 0)):
            x, y = a.sample(length, number, 42), b.sample(length, number, 42)
            assert list(x.context) == list(y.context), a.name
            assert (x.question, x.references) == (y.question, y.references)
            assert len(x.context) + len(own.encode(x.question)) + x.predict <= length


def test_a_text_begins_with_what_the_tokenizer_puts_before_it(needle_14m):
    bos = load_tokenizer(str(needle_14m))
    before = [("<|bos|>", 0), ("<|eos|>", 1)]
    bos.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A <|eos|>", special_tokens=before
    )
    assert beginning_of(bos) == [0]
    (task,) = _core.make_tasks(["passkey"], encode_of(bos), beginning_of(bos))
    context = list(task.sample(500, 0, 42).context)
    assert context[0] == 0 and 0 not in context[1:] and 1 not in context


def test_samples_are_those_of_the_command(needle_14m, model, tokenizer, tmp_path):
    command = shutil.which("topkv", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("the command topkv is not beside this Python")
    tasks = "vt,passkey,tables_sum"
    subprocess.run(
        [command, "eval", "-m", needle_14m, "--tasks", tasks, "--lengths", "900", "--samples", "2",
         "--methods", "dense;exact;streaming", "--budgets", "8", "--kv-window", "64", "--kv-dtype", "f32",
         "--seed", "7", "-o", tmp_path / "command"],
        check=True, capture_output=True,
    )
    methods = "dense;exact;streaming"
    settings = small(tasks=tasks.split(","), lengths=[900], samples=2, methods=methods, seed=7)
    evaluate(model, tokenizer, settings, output=tmp_path / "hf", progress=False)
    theirs, ours = answers(tmp_path / "command"), answers(tmp_path / "hf")
    assert [list(a) for a in theirs] == [list(b) for b in ours]  # the same members in all lines
    for name in ("task", "length", "sample", "method", "budget", "question", "references",
                 "haystack", "context_tokens", "question_tokens", "rows_per_head", "bytes_read",
                 "index", "tail", "window", "sinks", "dense_layers", "select", "seed", "device"):
        assert [a[name] for a in theirs] == [b[name] for b in ours], name
    # Rounding may turn a token where two nearly tie, which in so few answers it does not.
    assert [a["answer"] for a in theirs] == [b["answer"] for b in ours]
    for name in ("summary.csv", "scores.csv"):
        assert (tmp_path / "command" / name).read_text() == (tmp_path / "hf" / name).read_text()


def test_a_class_that_finds_the_best_answers_as_exact_and_one_that_takes_all_as_dense(
    model, tokenizer, methods, tmp_path
):
    list_of = f"dense;exact;{methods}:Largest;{methods}:All"
    settings = small(
        tasks=["passkey", "vt"], lengths=[900], window=256, methods=list_of, budgets=[8, 900]
    )
    table = evaluate(model, tokenizer, settings, output=tmp_path / "out", progress=False)
    found = {(a["method"], a["budget"], a["task"]): a for a in answers(tmp_path / "out")
             if a["method"] != f"{methods}:All" or a["budget"] == 900}
    for task in settings.tasks:
        dense = found["dense", None, task]["answer"]
        assert found[f"{methods}:All", 900, task]["answer"] == dense
        assert found["exact", 900, task]["answer"] == dense
        for budget in settings.budgets:
            exact, own = found["exact", budget, task], found[f"{methods}:Largest", budget, task]
            assert own["answer"] == exact["answer"]
            assert own["rows_per_head"] == exact["rows_per_head"]
            assert own["index"] == "Largest"
    assert [row.method for row in table.rows][:2] == ["dense", "exact"]
    assert table.columns == ["passkey", "vt"]


def test_models_with_sliding_windows_answer_alike_with_all_rows(tokenizer, methods, tmp_path):
    config = make_config("gemma2")
    config.vocab_size = len(tokenizer)
    torch.manual_seed(1)
    random = AutoModelForCausalLM.from_config(config, **EAGER).eval()
    settings = small(tasks=["passkey_steps"], methods=f"dense;exact;{methods}:All", budgets=[400])
    evaluate(random, tokenizer, settings, output=tmp_path / "out", progress=False, name="random")
    texts = [a["answer"] for a in answers(tmp_path / "out")]
    assert texts[0] == texts[1] == texts[2] != ""


def test_texts_are_read_as_the_prefill_says(model, tokenizer, tmp_path, monkeypatch):
    freeze = topkv.hf.TopkCache.freeze
    read = []

    def watched(cache, index=None):
        read.append(freeze(cache, index).context.keys(5, 0))
        return cache

    monkeypatch.setattr(topkv.hf.TopkCache, "freeze", watched)
    ways = {
        "dense": {},
        "all": {"prefill": "sparse", "prefill_mass": 1},  # as many keys as the text has
        "auto": {"prefill": "auto", "prefill_mass": 1},
        "window": {"prefill": "window"},
        "sparse": {"prefill": "sparse", "prefill_keys": 64, "prefill_least": 0},
        "less": {"prefill": "sparse", "prefill_keys": 64, "prefill_least": 0, "prefill_mass": 0.1},
    }
    keys = {}
    for way, given in ways.items():
        settings = small(methods="exact", **{"window": 32} | given)
        read.clear()
        evaluate(model, tokenizer, settings, output=tmp_path / way, progress=False)
        keys[way] = read[0]
        run = json.loads((tmp_path / way / "run.json").read_text())
        assert run.get("prefill", "dense") == settings.prefill
        mode = "dense" if settings.prefill == "auto" else settings.prefill  # the text is short
        assert [answer["prefill"] for answer in answers(tmp_path / way)] == [mode]
        assert ("prefill_keys" in run) == (settings.prefill in ("sparse", "auto"))
    assert (keys["all"] == keys["dense"]).all() and (keys["auto"] == keys["dense"]).all()
    off = [abs(keys[way] - keys["dense"]).mean() for way in ("sparse", "less", "window")]
    assert 0 < off[0] < off[1] < off[2]
    report = (tmp_path / "sparse" / "report.html").read_text()
    assert "prefill sparse of up to 64 keys, mass 0.98" in report
    with pytest.raises(topkv.FileError, match="other settings .*prefill"):
        again = small(methods="exact", window=32)
        evaluate(model, tokenizer, again, output=tmp_path / "auto", progress=False)


def test_a_run_goes_on_and_takes_more_into_its_folder(model, tokenizer, methods, tmp_path):
    out = tmp_path / "out"
    evaluate(model, tokenizer, small(methods="exact"), output=out, progress=False)
    before = (out / "samples.jsonl").read_text()
    notes = []
    more = small(methods=f"streaming;{methods}:Largest", samples=2)
    table = evaluate(model, tokenizer, more, output=out, progress=False, note=notes.append)
    assert (out / "samples.jsonl").read_text().startswith(before)
    assert [(a["method"], a["sample"]) for a in answers(out)[1:]] == [
        ("streaming", 0), (f"{methods}:Largest", 0), ("streaming", 1), (f"{methods}:Largest", 1)
    ]
    assert "has 1 answers already" in notes[0]
    assert [row.scores[0].samples for row in table.rows] == [1, 2, 2]
    with pytest.raises(topkv.FileError, match="other settings .*seed 42 there, 7 here"):
        evaluate(model, tokenizer, small(methods="exact", seed=7), output=out, progress=False)
    evaluate(model, tokenizer, small(methods="exact", seed=7), output=out, fresh=True, progress=False)
    assert [a["seed"] for a in answers(out)] == [7]


def test_what_a_failing_method_leaves_is_kept(model, tokenizer, tmp_path):
    (tmp_path / "fails.py").write_text(
        "class Fails:\n    def search(self, queries, keys, k, scale):\n        return None\n"
    )
    own = model.generation_config, model.config._attn_implementation
    settings = small(methods=f"exact;{tmp_path}/fails.py:Fails")
    with pytest.raises(topkv.InvalidArgument, match="Fails.search, layer 0, KV head 0: returned a"):
        evaluate(model, tokenizer, settings, output=tmp_path / "out", progress=False)
    assert [a["method"] for a in answers(tmp_path / "out")] == ["exact"]
    assert (tmp_path / "out" / "scores.csv").read_text().count("\n") == 2
    assert (model.generation_config, model.config._attn_implementation) == own


@pytest.mark.parametrize(
    "settings, error, says",
    [
        ({"methods": "{}:Missing"}, topkv.InvalidArgument, "no class Missing .* it has Largest, All"),
        ({"methods": "{}:Nothing"}, topkv.InvalidArgument, "no class Nothing with a method search"),
        ({"methods": "{}x.py:A"}, topkv.FileError, "is not a file; expected Python code with a class A"),
        ({"methods": "{}:All@select=group"}, topkv.InvalidArgument, "leave select out"),
        ({"methods": "{}:All@widow=3"}, topkv.InvalidArgument, "'widow=3' is no parameter"),
        ({"methods": "{0}:All;{0}:All"}, topkv.InvalidArgument, "is given twice"),
        ({"methods": "{}:All", "kv_dtype": "q8"}, topkv.Unsupported, "kv_dtype is q8"),
        ({"methods": "nosuch"}, topkv.InvalidArgument, "method 'nosuch'"),
        ({"tasks": ["nosuch"]}, topkv.InvalidArgument, "'nosuch' is no task"),
        ({"tasks": "vt"}, topkv.InvalidArgument, "tasks is 'vt'; expected a list"),
        ({"tasks": ["qa"]}, topkv.InvalidArgument, "qa and a file of questions go together"),
        ({"lengths": [50]}, topkv.InvalidArgument, "task passkey, length 50: "),
        ({"lengths": [2 * 1024**2]}, topkv.InvalidArgument, "the model was made for 1049600"),
        ({"budgets": [0]}, topkv.InvalidArgument, "budget is 0"),
        ({"prefill": "full"}, topkv.InvalidArgument, "prefill is 'full'; expected 'auto', 'dense'"),
        ({"prefill": "sparse", "prefill_keys": 0}, topkv.InvalidArgument, "prefill_keys is 0"),
        ({"prefill": "auto", "prefill_least": 9000}, topkv.InvalidArgument, "8192 keys, 9000 or more"),
        ({"prefill": "auto", "prefill_mass": 1.5}, topkv.InvalidArgument, "prefill_mass is 1.5"),
        ({"essays": "nosuch"}, topkv.FileError, "expected a folder"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_and_leave_no_folder(
    settings, error, says, model, tokenizer, methods, tmp_path
):
    if "methods" in settings:
        settings = settings | {"methods": settings["methods"].format(methods)}
    with pytest.raises(error, match=says):
        evaluate(model, tokenizer, small(**settings), output=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_qa_asks_about_files(model, tokenizer, tmp_path):
    (tmp_path / "notes.md").write_text("The meeting was moved to Friday.\n" * 20)
    lines = ({"question": "When?", "answers": ["Friday"]}, {"question": "Why?", "tokens": 4})
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = small(
        tasks=["qa"], samples=None, methods="streaming", budgets=[16],
        files=[str(tmp_path / "notes.md")], questions=str(tmp_path / "asked.jsonl"),
    )
    table = evaluate(model, tokenizer, settings, output=tmp_path / "out", progress=False)
    scored, kept = answers(tmp_path / "out")
    assert scored["score"] in (0, 1) and scored["f1"] is not None
    assert kept["score"] is None and kept["answer_tokens"] <= 4
    assert table.columns == ["qa", "qa_f1"]


@pytest.mark.parametrize(
    "answer, one_line, text",
    [
        ("\n 4711\n12", True, "\n 4711\n"),  # a line break before the first word does not end it
        ("\n 4711\n12", False, "\n 4711\n12"),
        ("4711<eos>12", False, "4711"),
    ],
)
def test_answers_end_as_those_of_the_command_do(answer, one_line, text, model, tokenizer):
    """A model that says `answer`, whatever it is asked."""
    eos = model.generation_config.eos_token_id
    parts = [encode_of(tokenizer)(part) for part in answer.split("<eos>")]
    says = [*parts[0], *(token for part in parts[1:] for token in (eos, *part))]
    asked = Asked(model, tokenizer, 2048)
    given = iter(says)

    def say(module, arguments, output):
        output.logits = torch.nn.functional.one_hot(
            torch.tensor([[next(given)]]), len(tokenizer)
        ).float()
        return output

    hook = model.register_forward_hook(say)
    try:
        with greedy(model):
            cache = DynamicCache(config=model.config)
            context = asked.ids([0, 5, 6])
            asked.read(context, cache)
            found = asked.ask(context, asked.ids([7, 8]), cache, len(says), one_line)
    finally:
        hook.remove()
    assert found.text == text
    assert found.decode_steps == found.tokens - ("<eos>" not in answer)


def test_generation_is_greedy_whatever_the_checkpoint_says(model):
    own = model.generation_config
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=9.0, repetition_penalty=3.0, eos_token_id=[1, 2]
    )
    try:
        with greedy(model):
            now = model.generation_config
            assert not now.do_sample and now.repetition_penalty in (None, 1.0)
            assert now.eos_token_id == [1, 2] and now.pad_token_id == 1
        assert model.generation_config.repetition_penalty == 3.0
    finally:
        model.generation_config = own


@pytest.mark.parametrize("way", ["the example", "the program"])
def test_the_example_of_a_method_is_measured(way, needle_14m, tmp_path, run_script):
    own = REPOSITORY / "examples" / "python" / "own_method.py"
    flags = ["--lengths", "1K", "--samples", "1", "--device", "cpu", "-o", str(tmp_path / "out")]
    flags += ["--tasks", "passkey", "--methods", f"dense;{own}:Pages@window=256"]
    if way == "the example":
        printed = run_script(own, *flags)
    else:
        flags += ["-m", str(needle_14m), "--budgets", "64"]
        done = subprocess.run(
            [sys.executable, "-m", "topkv.eval", *flags], capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    assert "passkey" in printed and f"{own}:Pages@window" in printed
    with open(tmp_path / "out" / "scores.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["budget"] for row in rows] == ["", "64"]
    assert float(rows[0]["score"]) == 100
    (pages,) = (a for a in answers(tmp_path / "out") if a["budget"] == 64)
    assert pages["tail"] == "own" and pages["window"] == 256
    assert pages["rows_per_head"] == pytest.approx(64, abs=1)
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["model"] == str(needle_14m) and run["samples"] == 1


def test_the_program_refuses_in_one_line(needle_14m, tmp_path, capsys):
    flags = ["-m", str(needle_14m), "-o", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*flags, "--tasks", "nosuch"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("topkv.eval: 'nosuch' is no task; expected some of ruler, ")
    assert main([*flags, "--prefill-keys", "64"]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("topkv.eval: --prefill-keys: has no effect with --prefill dense; leave it out, or give")
    for flag, value, says in (
        ("--lengths", "4Q", "expected a count such as 4096, 128K or 1M, found '4Q'"),
        ("--dtype", "int8", "expected auto, float32, bfloat16 or float16, found 'int8'"),
        ("--device", "gpu", "expected cpu, cuda or cuda:1, found 'gpu'"),
        ("--device", "cuda:99", "cuda:99: PyTorch sees"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*flags, flag, value])
        assert says in capsys.readouterr().err


def test_an_interrupted_program_says_how_to_go_on(needle_14m, tmp_path, capsys):
    (tmp_path / "stops.py").write_text(
        "class Stops:\n    def search(self, queries, keys, k, scale):\n"
        "        raise KeyboardInterrupt\n"
    )
    flags = ["-m", str(needle_14m), "-o", str(tmp_path / "out"), "--device", "cpu", "--samples", "1"]
    flags += ["--tasks", "passkey", "--lengths", "500", "--budgets", "8", "--kv-window", "64"]
    methods = f"streaming;{tmp_path}/stops.py:Stops"
    assert main([*flags, "--methods", methods]) == 130
    assert "interrupted: the same command goes on from here" in capsys.readouterr().err
    assert [a["method"] for a in answers(tmp_path / "out")] == ["streaming"]
    assert (tmp_path / "out" / "summary.csv").exists()
    assert main([*flags, "--methods", "streaming"]) == 0
    assert "has 1 answers already" in capsys.readouterr().err


def test_wide_tables_become_several_with_the_same_key_columns():
    class Row:
        length, method, budget, rows_per_head, average = 4096, "exact", 64, 63.6, 50.0
        bytes_read = 1.5 * 1024**2
        scores = [None] * 6

    class Table:
        columns = [f"a_long_task_{i}" for i in range(6)]
        rows = [Row()]

    text = table_text(Table(), 79)
    assert all(len(line) <= 79 for line in text.splitlines())
    assert text.count("length  method  budget  rows     read") == 3
    assert text.count("64  1.5 MiB") == 3
    assert [text.count(name) for name in (*Table.columns, "average")] == [1] * 7
    assert table_text(Table(), 1000).count("\n") == 2
