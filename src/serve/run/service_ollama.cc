// What the server tells of its model in Ollama's form.
#include <nlohmann/json.hpp>
#include <utility>

#include "src/serve/answer/ollama_response.h"
#include "src/serve/request/json_text.h"
#include "src/serve/run/service.h"

namespace topkv::serve {
namespace {

/// Models stay loaded: a time that no server sees.
constexpr const char* never = "2999-12-31T00:00:00Z";
constexpr std::int64_t nanoseconds_a_second = 1'000'000'000;

/// With the tag that names of Ollama always have.
std::string tagged(const std::string& name) {
  return name.find(':') == name.npos ? name + ":" + latest_tag : name;
}

}  // namespace

nlohmann::ordered_json Service::ollama_entry(const std::string& name) const {
  const ServedWeights& weights = options_.weights;
  const std::string& family = model_.config().model_type;
  nlohmann::ordered_json json;
  json["name"] = name;
  json["model"] = name;
  json["modified_at"] = ollama_time(started_ * nanoseconds_a_second);
  json["size"] = weights.bytes;
  json["digest"] = weights.fingerprint;
  nlohmann::ordered_json& details = json["details"];
  details["parent_model"] = "";
  details["format"] = weights.format;
  details["family"] = family;
  details["families"] = nlohmann::ordered_json::array({family});
  details["parameter_size"] = "";  // is not known
  details["quantization_level"] = model_.weights() == WeightFormat::stored
                                      ? weights.quantised
                                      : std::string(name_of(model_.weights()));
  return json;
}

std::string Service::ollama_models() const {
  nlohmann::ordered_json json = {{"models", nlohmann::ordered_json::array()}};
  for (const std::string& name : names_.all()) json["models"].push_back(ollama_entry(tagged(name)));
  for (const ContextInfo& info : contexts_.list())
    if (info.state == "ready")
      json["models"].push_back(ollama_entry(names_.with_context(info.name)));
  return json_text(json);
}

std::string Service::ollama_running() const {
  nlohmann::ordered_json entry = ollama_entry(tagged(names_.all().front()));
  entry["expires_at"] = never;
  entry["size_vram"] = model_.device().is_cuda() ? options_.weights.bytes : 0;
  entry["context_length"] = options_.room;
  nlohmann::ordered_json json = {{"models", nlohmann::ordered_json::array()}};
  json["models"].push_back(std::move(entry));
  return json_text(json);
}

std::string Service::ollama_model(const std::string& name) const {
  const std::string context = context_named(name);
  std::int64_t context_tokens = 0;
  bool chats = chat_.has_value();
  if (!context.empty()) {
    const std::shared_ptr<const ServedContext> found = contexts_.find(context);
    context_tokens = found->context->tokens();
    chats = found->end.chat;
  }
  const ModelConfig& config = model_.config();
  const std::string family = config.model_type + ".";
  nlohmann::ordered_json json = ollama_entry(name);
  for (const char* key : {"name", "model", "size", "digest"}) json.erase(key);
  json["modelfile"] = "";
  json["parameters"] = "";
  json["template"] = chats ? chat_->source() : "";
  nlohmann::ordered_json& info = json["model_info"];
  info["general.architecture"] = config.model_type;
  info[family + "context_length"] = options_.room;
  info[family + "embedding_length"] = config.hidden_size;
  info[family + "block_count"] = config.attention.layers;
  info[family + "vocab_size"] = config.vocab_size;
  info["topkv.context_tokens"] = context_tokens;
  json["capabilities"] = nlohmann::ordered_json::array({"completion"});
  if (chats && (form_.channels || form_.calls != AnswerForm::Calls::none))
    json["capabilities"].push_back("tools");
  if (chats && (form_.channels || !form_.think.empty())) json["capabilities"].push_back("thinking");
  return json_text(json);
}

}  // namespace topkv::serve
