// Writes the first inputs of the targets of contexts' files: fuzz_context_corpus tests/fuzz/corpus
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "src/context/file/file_format.h"
#include "src/core/io/open_file.h"
#include "tests/fuzz/context_specs.h"
#include "tests/support/context_file_case.h"
#include "topkv/context_file.h"

namespace {

namespace fs = std::filesystem;

fs::path corpus;

void put(const char* target, const std::string& name, const std::string& bytes) {
  fs::create_directories(corpus / target);
  std::ofstream(corpus / target / name, std::ios::binary) << bytes;
}

struct Saved {
  std::string bytes;
  topkv::FileTable table;
};

Saved saved(const topkv::AttentionShape& shape, std::int64_t tokens, const std::string& dtype,
            const std::vector<std::string>& indices, const std::vector<float>& key_bias = {}) {
  const auto context =
      topkv::test::saved_context(shape, tokens, topkv::KvDType::parse(dtype), indices, key_bias);
  const fs::path path = corpus / "c.tkv";
  topkv::ContextOrigin origin{.model = "m", .made_with = "t"};
  for (topkv::Token t = 0; t < tokens; ++t) origin.tokens.push_back(t);
  topkv::save_context(*context, path, origin);
  Saved out{topkv::test::bytes_of_file(path), topkv::FileTable::parse(topkv::ReadableFile(path))};
  fs::remove(path);
  return out;
}

std::string content(const Saved& of, const topkv::Section& section) {
  return of.bytes.substr(static_cast<std::size_t>(section.at),
                         static_cast<std::size_t>(section.bytes));
}

/// As context_bytes.h reads it.
std::string sections(const Saved& of) {
  std::string out;
  for (const topkv::Section& section : of.table.sections) {
    out += static_cast<char>(section.kind);
    out += static_cast<char>(section.required);
    out += static_cast<char>(section.index);
    out += static_cast<char>(section.layer | section.kv_head << 4U);
    const std::string bytes = content(of, section);
    const std::uint32_t size = static_cast<std::uint32_t>(bytes.size()) << 8U;
    out.append(reinterpret_cast<const char*>(&size), 4);
    out += bytes;
  }
  return out;
}

std::string renamed(std::string text) {
  const std::string from = "codes:", to = "later:";
  return text.replace(text.find(from), from.size(), to);
}

/// Of a file of the corpus: "codes", or "faiss_IVF3_SQ8".
std::string name_of(const std::string& spec) {
  if (!spec.starts_with("faiss:")) return spec.substr(0, spec.find(':'));
  std::string name = spec.substr(0, spec.find(';'));
  for (char& c : name)
    if (c == ':' || c == ',') c = '_';
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: fuzz_context_corpus CORPUS\n"), 2;
  corpus = argv[1];
  const topkv::AttentionShape tiny{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  std::size_t number = 0;
  for (const std::string spec : topkv::fuzz::context_specs) {
    const std::string name = name_of(spec);
    const Saved with = saved(tiny, 24, "f32", {spec});
    if (number % 3 == 0) put("context_sections", name, sections(with));
    // An index, and its tail behind it, as context_archive reads them.
    std::string archive(1, static_cast<char>(number++));
    for (const topkv::Section& section : with.table.sections)
      if (section.kind == topkv::SectionKind::index || section.kind == topkv::SectionKind::tail)
        archive += content(with, section);
    put("context_archive", name, archive);
    put("context_description", name, content(with, with.table.sections.front()));
    for (const topkv::Section& section : with.table.sections)
      if (section.kind == topkv::SectionKind::queries && number == 1)
        put("context_archive", "queries",
            static_cast<char>(std::size(topkv::fuzz::context_specs)) + content(with, section));
  }
  // An index of a later version, beside one that is known.
  const Saved later = saved(tiny, 24, "f32", {"codes:k=8,v=4", "quest:page=8"});
  put("context_description", "later", renamed(content(later, later.table.sections.front())));
  put("context_sections", "later", renamed(sections(later)));
  for (const char* dtype : {"bf16", "q8", "q4", "q8/q4", "f16"}) {
    std::string name = dtype;
    if (name == "q8/q4") name = "mixed";
    put("context_sections", name,
        sections(saved(
            {.layers = 2, .q_heads = 2, .kv_heads = 1, .head_dim = 32, .sliding_window = {0, 4}}, 8,
            dtype, {})));
  }
  put("context_sections", "bias",
      sections(saved(tiny, 8, "q4", {}, std::vector<float>(std::size_t{3} * 16, 0.5F))));
  const Saved layers = saved({.layers = 4,
                              .q_heads = 2,
                              .kv_heads = 1,
                              .head_dim = 16,
                              .row_layer = {0, 1, 1, 3},
                              .state_size = {3, 0, 0, 5}},
                             8, "q8", {"mean"});
  put("context_sections", "layers", sections(layers));
  put("context_description", "layers", content(layers, layers.table.sections.front()));
  const Saved indexed = saved(
      {.layers = 2,
       .q_heads = 2,
       .kv_heads = 1,
       .head_dim = 16,
       .indexer = topkv::IndexerShape{.dim = 8, .heads = 2, .tokens_per_key = 4, .top = 2},
       .indexer_layer = {0, 0}},
      10, "bf16", {});
  put("context_sections", "indexer", sections(indexed));
  put("context_description", "indexer", content(indexed, indexed.table.sections.front()));
  put("context_file", "plain", saved(tiny, 4, "bf16", {}).bytes);
  put("context_file", "mean", saved(tiny, 4, "f32", {"none"}).bytes);
}
