// Generation: its options and results, and what of Model generates.
#include <fmt/format.h>
#include <pybind11/stl.h>

#include <deque>
#include <map>

#include "bindings/src/handles.h"
#include "bindings/src/progress.h"
#include "src/model/generate/sampler.h"
#include "topkv/draft_model.h"
#include "topkv/grammar.h"
#include "topkv/model.h"

namespace topkv::python {
namespace {

/// What is asked for; None is what the model's own sampling says.
struct Asked {
  std::int64_t max_tokens;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  std::uint64_t seed;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  double frequency_penalty;
  double presence_penalty;
  std::vector<std::string> stop;
  std::optional<std::int64_t> logprobs;
  py::object before;
  py::object progress;
  std::optional<std::map<Token, double>> logit_bias;
  std::optional<std::int64_t> prompt_logprobs;
  std::string draft;
  std::shared_ptr<const DraftModel> draft_model;
  py::object json_schema;
};

std::vector<TokenBias> biases_of(const std::optional<std::map<Token, double>>& asked) {
  std::vector<TokenBias> biases;
  if (asked)
    for (const auto& [token, bias] : *asked) biases.push_back({token, bias});
  return biases;
}

/// A schema is given as a text, or as what json.dumps makes one of.
std::shared_ptr<const Grammar> grammar_of(const Model& model, const py::object& schema) {
  if (schema.is_none()) return {};
  const std::string text =
      py::isinstance<py::str>(schema)
          ? schema.cast<std::string>()
          : py::module_::import("json").attr("dumps")(schema).cast<std::string>();
  const GilReleased released;
  return Grammar::json_schema(model, text);
}

/// Warns where the model has a say in how it is sampled, and says what topkv does not have.
GenerateOptions options_of(const Model& model, const Asked& asked) {
  const SamplingOptions& own = model.config().sampling;
  const bool follows = !asked.temperature && !asked.top_k && !asked.top_p && !asked.min_p &&
                       !asked.repetition_penalty;
  if (follows && !model.config().sampling_warning.empty()) warn(model.config().sampling_warning);
  return {
      .max_tokens = asked.max_tokens,
      .sampling = {.temperature = asked.temperature.value_or(own.temperature),
                   .top_k = asked.top_k.value_or(own.top_k),
                   .top_p = asked.top_p.value_or(own.top_p),
                   .seed = asked.seed,
                   .min_p = asked.min_p.value_or(own.min_p),
                   .repetition_penalty = asked.repetition_penalty.value_or(own.repetition_penalty),
                   .frequency_penalty = asked.frequency_penalty,
                   .presence_penalty = asked.presence_penalty,
                   .logit_bias = biases_of(asked.logit_bias)},
      .draft = parse_draft(asked.draft),
      .draft_model = asked.draft_model,
      .progress = progress_of(asked.progress),
      .stop = asked.stop,
      .grammar = grammar_of(model, asked.json_schema),
      .logprobs = asked.logprobs.value_or(-1),
      .before = asked.before.is_none() ? std::vector<Token>() : tokens_of(asked.before, "before"),
      .prompt_logprobs = asked.prompt_logprobs.value_or(-1)};
}

GenerateResult generate(const Model& self, SessionHandle& session, py::handle prompt,
                        const Asked& asked, const py::object& on_token, const py::object& on_text) {
  const std::vector<Token> ids = tokens_of(prompt, "prompt");
  const GenerateOptions options = options_of(self, asked);
  const TokenFn report = on_token_of(on_token);
  const TextFn say = on_text_of(on_text);
  const Exclusive::Write use(session.use, "the session");
  const GilReleased released;
  return self.generate(session.session, ids, options, report, say);
}

std::vector<GenerateResult> generate_together(const Model& self,
                                              const std::vector<SessionHandle*>& sessions,
                                              const std::vector<py::object>& prompts,
                                              const Asked& asked, const py::object& on_token,
                                              const py::object& on_text) {
  std::vector<std::vector<Token>> ids;
  for (const py::object& prompt : prompts) ids.push_back(tokens_of(prompt, "prompts"));
  const GenerateOptions options = options_of(self, asked);
  const TokenOfFn report = on_token_of_each(on_token);
  const TextOfFn say = on_text_of_each(on_text);
  std::deque<Exclusive::Write> uses;
  std::vector<Session*> each;
  for (SessionHandle* const session : sessions) {
    if (session == nullptr) throw InvalidArgument("sessions has None; expected topkv.Session");
    uses.emplace_back(session->use, "one of the sessions");
    each.push_back(&session->session);
  }
  const GilReleased released;
  return self.generate_together(each, ids, options, report, say);
}

/// float64 [vocab]: probabilities that a token is drawn with, for checks of the sampler.
std::vector<double> sampling_distribution(const std::vector<float>& logits, py::handle prompt,
                                          py::handle answer, const SamplingOptions& options) {
  Sampler sampler(options);
  sampler.read(tokens_of(prompt, "prompt"), std::ssize(logits));
  for (const Token token : tokens_of(answer, "answer")) sampler.answer(token);
  double total = 0;
  const auto candidates = sampler.candidates(logits);
  for (const Sampler::Candidate& one : candidates) total += one.weight;
  std::vector<double> shares(logits.size());
  for (const Sampler::Candidate& one : candidates)
    shares[static_cast<std::size_t>(one.token)] = one.weight / total;
  return shares;
}

void bind_results(py::module_& module) {
  py::class_<SamplingOptions>(module, "SamplingOptions",
                              "The options by which the next token is chosen.")
      .def_readonly("temperature", &SamplingOptions::temperature, "0: greedy.")
      .def_readonly("top_k", &SamplingOptions::top_k, "0: off.")
      .def_readonly("top_p", &SamplingOptions::top_p)
      .def_readonly("min_p", &SamplingOptions::min_p, "0: off.")
      .def_readonly("repetition_penalty", &SamplingOptions::repetition_penalty, "1: off.")
      .def("__repr__", [](const SamplingOptions& self) {
        return fmt::format(
            "SamplingOptions(temperature={:g}, top_k={}, top_p={:g}, min_p={:g}, "
            "repetition_penalty={:g})",
            self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty);
      });

  py::class_<TokenLogprobs>(module, "TokenLogprobs",
                            "Natural logs of the probabilities of a token and of the likeliest "
                            "tokens, in the model's own distribution.")
      .def_property_readonly("token", [](const TokenLogprobs& of) { return of.chosen.token; })
      .def_property_readonly("logprob", [](const TokenLogprobs& of) { return of.chosen.logprob; })
      .def_property_readonly(
          "top",
          [](const TokenLogprobs& of) {
            std::vector<std::pair<Token, double>> top;
            for (const TokenLogprob& one : of.top) top.emplace_back(one.token, one.logprob);
            return top;
          },
          "(token, logprob) of the likeliest tokens, in order.")
      .def("__repr__", [](const TokenLogprobs& of) {
        return fmt::format("<TokenLogprobs of token {}: {:.4g}, and of the {} likeliest>",
                           of.chosen.token, of.chosen.logprob, of.top.size());
      });

  py::class_<GenerateResult>(module, "GenerateResult")
      .def_readonly("tokens", &GenerateResult::tokens, "Generated tokens, without the end token.")
      .def_readonly("text", &GenerateResult::text,
                    "The text up to a stop text; only with on_text or stop.")
      .def_readonly("logprobs", &GenerateResult::logprobs,
                    "Log-probabilities of each token, if requested.")
      .def_readonly("end_logprobs", &GenerateResult::end_logprobs,
                    "Log-probabilities of the answer's end token, if requested; else None.")
      .def_readonly("prompt_logprobs", &GenerateResult::prompt_logprobs,
                    "Log-probabilities of the prompt's tokens from the second on, if requested.")
      .def_property_readonly(
          "finish", [](const GenerateResult& result) { return name_of(result.finish); },
          "Why it ended: \"end_token\", \"stop_text\", \"length\" or \"caller\".")
      .def_property_readonly("ended", &GenerateResult::ended,
                             "Whether the model gave an end token.")
      .def_readonly("steps", &GenerateResult::steps,
                    "Tokens fed after the prompt, without drafted tokens that were rejected.")
      .def_readonly("drafted", &GenerateResult::drafted, "Tokens of drafts.")
      .def_readonly("accepted", &GenerateResult::accepted, "Tokens of drafts that were chosen.")
      .def_readonly("model_drafted", &GenerateResult::model_drafted,
                    "Tokens of drafts that the draft model or the draft layer drafted.")
      .def_readonly("model_accepted", &GenerateResult::model_accepted,
                    "Tokens that the draft model or the draft layer drafted and that were chosen.")
      .def_readonly("prompt_seconds", &GenerateResult::prompt_seconds)
      .def_readonly("decode_seconds", &GenerateResult::decode_seconds)
      .def_readonly("times", &GenerateResult::times)
      .def("__repr__", [](const GenerateResult& result) {
        return fmt::format(
            "<GenerateResult of {} tokens, finish: {}, {} steps, prompt {:.3g} s, decode {:.3g} s>",
            result.tokens.size(), name_of(result.finish), result.steps, result.prompt_seconds,
            result.decode_seconds);
      });
}

void bind_draft_model(py::module_& module) {
  py::class_<DraftModel, std::shared_ptr<DraftModel>>(
      module, "DraftModel",
      "A model that drafts tokens for another model of the same vocabulary. The other model "
      "verifies them, and its answers stay as they are.")
      .def(
          py::init([](std::shared_ptr<Model> model, const Model& of, std::int64_t window,
                      const std::string& kv_dtype) {
            const DraftModelOptions options{.window = window, .rows = KvDType::parse(kv_dtype)};
            const GilReleased released;
            return std::make_shared<DraftModel>(std::move(model), of, options);
          }),
          py::arg("model"), py::arg("of"), py::kw_only(),
          py::arg("window") = DraftModelOptions().window, py::arg("kv_dtype") = "bf16",
          py::keep_alive<1, 3>(),
          "Opens `model` to draft for `of`. It reads the last `window` tokens of a text, and keeps "
          "rows of them in each session that it drafts for. Raises InvalidArgument when the "
          "vocabularies differ.")
      .def_property_readonly("window", &DraftModel::window,
                             "The most tokens of a text's end that the model reads.")
      .def_property_readonly("session_bytes", &DraftModel::session_bytes,
                             "Host memory that the rows of one session take, in bytes.")
      .def("__repr__", [](const DraftModel& self) {
        return fmt::format("<DraftModel of {}, window {}>", self.model().config().model_type,
                           self.window());
      });
}

}  // namespace

void bind_generate(py::module_& module, py::class_<Model, std::shared_ptr<Model>>& model) {
  bind_draft_model(module);
  const auto def = [&](const char* name, const auto& call, const char* first, const char* second,
                       const char* says) {
    model.def(name, call, py::arg(first), py::arg(second), py::arg("max_tokens") = 128,
              py::arg("temperature") = py::none(), py::arg("top_k") = py::none(),
              py::arg("top_p") = py::none(), py::arg("seed") = 0, py::arg("on_token") = py::none(),
              py::kw_only(), py::arg("progress") = py::none(), py::arg("min_p") = py::none(),
              py::arg("repetition_penalty") = py::none(), py::arg("frequency_penalty") = 0.0,
              py::arg("presence_penalty") = 0.0, py::arg("stop") = std::vector<std::string>(),
              py::arg("logprobs") = py::none(), py::arg("on_text") = py::none(),
              py::arg("before") = py::none(), py::arg("logit_bias") = py::none(),
              py::arg("prompt_logprobs") = py::none(), py::arg("draft") = "auto",
              py::arg("draft_model") = py::none(), py::arg("json_schema") = py::none(), says);
  };
  // One list of arguments for both: what generates, and the type of its first two.
  def(
      "generate",
      [](const Model& self, SessionHandle& session, const py::object& prompt,
         std::int64_t max_tokens, std::optional<double> temperature,
         std::optional<std::int64_t> top_k, std::optional<double> top_p, std::uint64_t seed,
         const py::object& on_token, const py::object& progress, std::optional<double> min_p,
         std::optional<double> repetition_penalty, double frequency_penalty,
         double presence_penalty, std::vector<std::string> stop,
         std::optional<std::int64_t> logprobs, const py::object& on_text, const py::object& before,
         std::optional<std::map<Token, double>> logit_bias,
         std::optional<std::int64_t> prompt_logprobs, const std::string& draft,
         std::shared_ptr<DraftModel> draft_model, const py::object& json_schema) {
        return generate(
            self, session, prompt,
            {max_tokens, temperature, top_k, top_p, seed, min_p, repetition_penalty,
             frequency_penalty, presence_penalty, std::move(stop), logprobs, before, progress,
             std::move(logit_bias), prompt_logprobs, draft, std::move(draft_model), json_schema},
            on_token, on_text);
      },
      "session", "prompt",
      "Feeds the prompt's token ids to the session, then generates. docs/reference/generation.md "
      "has all options.\n\n"
      "temperature (0: greedy), top_k, top_p, min_p, repetition_penalty: by default "
      "config.sampling's.\n\n"
      "stop: texts; the answer ends before the first of them.\n\n"
      "logprobs: report the chosen token and 0 to 20 of the likeliest tokens. prompt_logprobs: the "
      "same for each token of the prompt.\n\n"
      "logit_bias: numbers by id, which are added to logits.\n\n"
      "before: ids before the prompt that repetition_penalty counts too.\n\n"
      "draft: \"auto\" drafts tokens from the text itself where the answer stays as it is, "
      "\"none\" "
      "drafts nothing, \"lookup\" drafts on a CUDA device, too.\n\n"
      "draft_model: a DraftModel of this model, which drafts where the text has no draft.\n\n"
      "json_schema: the answer's text is JSON that conforms to this schema: a dict, or its "
      "text.\n\n"
      "on_token(token), on_text(piece): piece has whole characters. They may return False to "
      "stop.\n\n"
      "progress: called with a Progress, stage \"prompt\", in tokens, while the prompt is read. An "
      "exception in it, and Ctrl-C, end the reading within about a second and leave the session as "
      "it was.");
  def(
      "generate_together",
      [](const Model& self, const std::vector<SessionHandle*>& sessions,
         const std::vector<py::object>& prompts, std::int64_t max_tokens,
         std::optional<double> temperature, std::optional<std::int64_t> top_k,
         std::optional<double> top_p, std::uint64_t seed, const py::object& on_token,
         const py::object& progress, std::optional<double> min_p,
         std::optional<double> repetition_penalty, double frequency_penalty,
         double presence_penalty, std::vector<std::string> stop,
         std::optional<std::int64_t> logprobs, const py::object& on_text, const py::object& before,
         std::optional<std::map<Token, double>> logit_bias,
         std::optional<std::int64_t> prompt_logprobs, const std::string& draft,
         std::shared_ptr<DraftModel> draft_model, const py::object& json_schema) {
        return generate_together(
            self, sessions, prompts,
            {max_tokens, temperature, top_k, top_p, seed, min_p, repetition_penalty,
             frequency_penalty, presence_penalty, std::move(stop), logprobs, before, progress,
             std::move(logit_bias), prompt_logprobs, draft, std::move(draft_model), json_schema},
            on_token, on_text);
      },
      "sessions", "prompts",
      "Generates for several sessions over one context, 1 to 256, each with its own prompt. Takes "
      "the options of generate(). Answers grow in joint steps, which read weights and codes once. "
      "on_token(i, token) and on_text(i, piece) get the number of the session, and stop that one.");
}

void bind_generation(py::module_& module) {
  bind_results(module);
  module.def(
      "_sampling_distribution",
      [](const std::vector<float>& logits, const py::object& prompt, const py::object& answer,
         double temperature, std::int64_t top_k, double top_p, double min_p,
         double repetition_penalty, double frequency_penalty, double presence_penalty,
         const std::optional<std::map<Token, double>>& logit_bias) {
        return sampling_distribution(logits, prompt, answer,
                                     {temperature, top_k, top_p, 0, min_p, repetition_penalty,
                                      frequency_penalty, presence_penalty, biases_of(logit_bias)});
      },
      py::arg("logits"), py::arg("prompt"), py::arg("answer"), py::kw_only(),
      py::arg("temperature") = 0.0, py::arg("top_k") = 0, py::arg("top_p") = 1.0,
      py::arg("min_p") = 0.0, py::arg("repetition_penalty") = 1.0,
      py::arg("frequency_penalty") = 0.0, py::arg("presence_penalty") = 0.0,
      py::arg("logit_bias") = py::none(),
      "The probability of each next token after these; for checks.");
}

}  // namespace topkv::python
