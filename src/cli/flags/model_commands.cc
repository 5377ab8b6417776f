// The commands that run a model for what it answers, and their flags.
#include "src/cli/flags/shared_flags.h"
#include "topkv/generation.h"

namespace topkv::cli {
namespace {

const char* const weights_of_file = "hold weights as for topkv prefill: stored, int8 or int4";
const char* const no_figures = "print no figures and no progress";

Flag prompt(FlagValue value, const std::string& meaning, const std::string& otherwise) {
  return Flag("-p, --prompt", std::move(value), meaning, "", otherwise);
}

Flag chat_message(const std::string& what) {
  return Flag("--chat", {}, what + " in the model's chat template");
}

Flag system_message(const std::string& condition) {
  return Flag("--system", value::prose("the text of a system message"),
              condition + "begin with this system message");
}

Flag template_variable(const std::string& condition) {
  return {
      "--template-arg", value::repeated(value::text("a name, = and a value in JSON", "NAME=JSON")),
      condition +
          "set a variable of the chat template, such as enable_thinking=false; repeat for several"};
}

FlagGroup with_index(FlagGroup retrieval, const std::string& meaning,
                     const std::string& otherwise) {
  retrieval.flags.front().meaning = meaning;
  retrieval.flags.front().otherwise = otherwise;
  return retrieval;
}

FlagGroup with_flag(FlagGroup group, std::ptrdiff_t at, Flag flag) {
  group.flags.insert(group.flags.begin() + at, std::move(flag));
  return group;
}

/// The flags of how prompts over a context are read.
FlagGroup turn_flags() {
  FlagGroup group = prefill_flags("auto");
  group.title = "prefill of long prompts";
  std::erase_if(group.flags, [](const Flag& flag) { return !flag.names.starts_with("--prefill"); });
  group.flags[0].meaning =
      "read prompts of 272 tokens or more with dense or sparse attention; auto is sparse, or dense "
      "where that is quicker; window: each token finds rows for itself";
  group.flags[1] = needing(Flag("--prefill-window", group.flags[1].value,
                                "sparse: let each token attend to the last N", "1024"),
                           "--prefill", {"sparse", "auto"});
  return group;
}

CommandHelp needle_command() {
  return {
      "needle",
      "hide facts in a long text and ask for them",
      "-m DIR [-c 128K,1M] [flags]",
      "Hides facts at several depths of a long text and prefills the text once. Then asks for "
      "each fact in a session of its own. The bundled model was trained with the window of the "
      "default prefill, which is the quickest; for other models give --prefill auto.",
      {model_flags(),
       {"task",
        {Flag("-c, --ctx", value::text("tokens such as 4096,128K,1M", "LIST"),
              "prefill contexts of these lengths in tokens: 4096,1M (K = 1024, M = 1024²)", "128K"),
         Flag("--ruler-length", {},
              "let -c include the question and 128 tokens of answer, as RULER does"),
         depths_flag("--depths", "hide facts", "10"), haystack_flag("hide facts in"),
         Flag("--needle", value::choice("STYLE", {"number", "word", "uuid", "passkey"}),
              "hide a number, word or uuid (as in RULER) or a passkey", "number"),
         if_given(Flag("--needle-text", value::prose("the text of a sentence"),
                       "hide this sentence; needs --question and --answer")),
         if_given(Flag("--question", value::prose("the text of a question"),
                       "ask for your own needle with this text")),
         if_given(Flag("--answer", value::prose("the text of an answer"),
                       "expect this answer to your question")),
         Flag("--separate", {},
              "prefill a context for each needle; always so for passkey and for your own needle")}},
       compared(retrieval_flags(), {"--kv-index"}),
       prefill_flags("window"),
       sampling_flags("", "32; 64 for uuid"),
       {"results",
        {folder_flag(
             "write results to DIR; an earlier run there continues, with more -c or --kv-index",
             "a folder for these settings"),
         fresh_flag(),
         Flag("--kv-recall", {},
              "also search exactly, and report the share of those rows that the index found"),
         profile_flag(), json_flag("print cells as lines of JSON")}}},
      {"topkv needle -m models/needle-14m -c 32K,128K,1M --kv-topk 64",
       "topkv needle -m models/needle-14m -c 128K --kv-index exact --kv-index hnsw:M=16 -o "
       "out/hnsw"}};
}

CommandHelp generate_command() {
  return {
      "generate",
      "continue a prompt, with files as context if wanted",
      "-m DIR [-p PROMPT] [-f FILE]... [flags]",
      "Continues a prompt, or the text of files. Files become a frozen context before the "
      "prompt, and each step retrieves rows from it. Files and prompt are read as one text: "
      "end the last line of a file before a question.",
      {with_indexer(model_flags()),
       {"text",
        {prompt(value::prose("a text to continue"), "continue this text; with --chat, ask it",
                "the files alone"),
         files_flag("read text of the context; repeat for several, - is standard input"),
         chat_message("ask with files and prompt as one message"), system_message("with --chat: "),
         template_variable("with --chat: "), length_flag("all the model supports")}},
       with_flag(answer_flags("128"), 1,
                 Flag("-N, --samples", value::count(1, GenerationBatch::most_sessions),
                      "generate N answers, with this seed and the next ones", "1")),
       retrieval_flags(),
       prefill_flags("auto"),
       with_flag(shown_flags(), 4, profile_flag())},
      {"topkv generate -m models/needle-14m -p \"Once upon a time\" -n 40",
       "cat book.txt | topkv generate -m models/needle-14m -f - -p \"The hero's name is\""}};
}

CommandHelp chat_command() {
  Flag files = files_flag("talk about this text; repeat for several");
  files.value.expected = "a file";
  return {
      "chat",
      "hold a conversation over files, for models with a chat template",
      "-m DIR [-f FILE]... [flags]",
      "Holds a conversation in the model's chat template. Each line of standard input is a "
      "question; answers go to standard output. Files are read once, before the first question. "
      "Ctrl-C ends an answer. At the prompt, Ctrl-C or the end of the input (Ctrl-D) ends the "
      "program.",
      {model_flags(),
       {"text",
        {files, system_message(""), template_variable(""),
         Flag("--room", value::count(2),
              "allow N tokens for questions and answers together, beside the files", "64K")}},
       answer_flags("1024"),
       retrieval_flags(),
       prefill_flags("auto"),
       shown_flags()},
      {"topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt",
       "printf 'Who is the hero?\\nWhy?\\n' | topkv chat -m Qwen2.5-7B-Instruct-1M -f book.txt"}};
}

CommandHelp prefill_command() {
  return {
      "prefill",
      "read texts once into a context file",
      "-m DIR -f FILE... -o FILE.tkv [flags]",
      "Reads texts once and writes their context to a file for topkv ask: rows, indices and codes. "
      "The new file appears once it is complete; an older file of that name stays until then.",
      {with_indexer(model_flags(),
                    "keep the index keys of the trained indexer in this file, on a CPU"),
       {"text",
        {required(files_flag("read text of the context; repeat for several, - is standard input")),
         chat_message("make the texts the beginning of a message"), system_message("with --chat: "),
         length_flag("all the model supports")}},
       {"file",
        {required(
             Flag("-o, --output", value::file("the file to write"), "write the context to FILE")),
         Flag("--kv-index",
              value::repeated(
                  value::text("an index such as codes", "SPEC",
                              {"codes", "exact", "ivf", "hnsw", "faiss:IVF,SQ8", "faiss:HNSW32"})),
              "build codes, exact, ivf, hnsw, faiss:IVF,SQ8, …; repeat for several", "",
              "codes:k=32,v=8; k=16 above 256 dims a head"),
         Flag("--kv-tail", value::text("none, mean or a spec of codes", "SPEC", {"mean", "codes"}),
              "build a tail beside the index's own: mean, or a spec of codes", "", "none")}},
       prefill_flags("auto"),
       {"results",
        {Flag("--measure", {},
              "sparse: measure, rather than estimate, the share of attention that was met"),
         json_flag("print one JSON object, with figures of each layer"),
         Flag("--quiet", {}, no_figures)}}},
      {"topkv prefill -m Qwen2.5-7B-Instruct-1M -f book.txt -o book.tkv --chat",
       "topkv prefill -m models/needle-14m -f notes.txt -o notes.tkv"}};
}

CommandHelp ask_command() {
  return {
      "ask",
      "answer prompts over a context file",
      "FILE.tkv -m DIR [-p PROMPT]... [flags]",
      "Answers prompts over a context that topkv prefill wrote, with the model that read it. Each "
      "prompt is answered by itself, several of them in joint steps. Answers go to standard output "
      "in the order of the prompts.",
      {with_indexer(model_flags(weights_of_file)),
       {"text",
        {prompt(value::repeated(value::prose("a text to continue")),
                "continue this text, or ask it if the context is in a chat template; repeat for "
                "several",
                "lines of standard input"),
         template_variable("for a context in a chat template: "),
         Flag("--mmap", {}, "leave rows in the file, for contexts larger than memory"),
         shared_flag("--mem"), length_flag("as the context was read")}},
       answer_flags("128"),
       with_index(retrieval_flags(),
                  "find rows with an index of the file, or build another one first", "the file's"),
       turn_flags(),
       shown_flags()},
      {"topkv ask book.tkv -m Qwen2.5-7B-Instruct-1M -p \"Who is the hero?\" -p \"Where does it "
       "end?\"",
       "topkv ask notes.tkv -m models/needle-14m <prompts.txt"},
      {required(Flag("FILE", value::context()))}};
}

CommandHelp serve_command() {
  FlagGroup prefill = prefill_flags("auto");
  prefill.title = "prefill of texts and long prompts that clients send";
  const FlagGroup drafts = {"drafts", draft_flags()};
  return {
      "serve",
      "serve contexts over HTTP to clients of OpenAI's API and Ollama's",
      "-m DIR [FILE.tkv]... [--port N] [flags]",
      "Answers requests over HTTP as OpenAI's API and Ollama's do; requests over one context share "
      "steps. A request names book.tkv by \"context\": \"book\" or by \"model\": \"MODEL:book\". "
      "Ctrl-C ends the server once running answers are complete, after 10 s at most. A second "
      "Ctrl-C ends it at once. Routes, fields and limits: docs/reference/server.md.",
      {model_flags(weights_of_file),
       {"server",
        {Flag("--host", value::text("an address of this machine", "ADDRESS"),
              "listen at this address", "127.0.0.1"),
         Flag("--port", value::count(0, 65535), "listen at this port; 0 takes any free port",
              "8080"),
         Flag("--api-key", value::text("a text that clients must know", "KEY"),
              "require this key from clients; other users cannot see it in TOPKV_API_KEY", "",
              "none"),
         Flag("--alias", value::repeated(value::text("another name of the model", "NAME")),
              "accept NAME for the model in requests, too; repeat for several", "", "none"),
         Flag("--max-queue", value::count(1, 1024),
              "let at most N answers wait; refuse more with status 429", "64"),
         Flag("--max-batch", value::count(1, 256), "step at most N answers together", "16"),
         Flag("--room", value::count(2),
              "allow N tokens for a prompt and its answer, beside the context", "16K"),
         Flag("--keep", value::or_word(value::bytes(), "0"),
              "keep rows of ended answers for prompts that continue their texts; 0 keeps none", "",
              "1/4 of free memory"),
         Flag("--mmap", {}, "leave rows in the files"), length_flag("as the contexts were read")}},
       drafts,
       with_index(retrieval_flags(), "find rows of all contexts with this index",
                  "a FILE's own; codes for texts of clients"),
       prefill},
      {"topkv serve -m models/needle-14m notes.tkv",
       "topkv serve -m Qwen/Qwen2.5-7B-Instruct-1M book.tkv laws.tkv --port 8000 --max-batch 8"},
      {Flag("FILE", value::repeated(value::context()))}};
}

CommandHelp verify_command() {
  return {"verify",
          "check a context file byte by byte",
          "FILE.tkv [flags]",
          "Reads a whole context file. Checks every checksum, that all rows are finite, and that "
          "the indices belong to these rows. Ends with status 1 and names the first damaged part "
          "if there is one.",
          {{"",
            {shared_flag("--threads"), json_flag("print one JSON object, for a damaged file, too"),
             Flag("--quiet", {}, "print no progress, and nothing about an undamaged file")}}},
          {"topkv verify book.tkv", "topkv verify book.tkv && cp book.tkv backup/"},
          {required(Flag("FILE", value::context()))}};
}

}  // namespace

std::vector<CommandHelp> model_commands() {
  return {needle_command(), generate_command(), chat_command(),  prefill_command(),
          ask_command(),    serve_command(),    verify_command()};
}

}  // namespace topkv::cli
