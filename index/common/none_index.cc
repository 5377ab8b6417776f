#include "index/common/none_index.h"

#include "index/common/index_factory.h"
#include "index/common/inserting_index.h"

namespace topkv {
namespace {

class NoneIndex final : public InsertingIndex {
 public:
  void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const override {
    key_list().check_search("none", built(), queries, k);
    result.reset(queries.count, 1);
  }
  std::int64_t memory() const override { return sizeof *this; }
  std::int64_t bytes_searched() const override { return 0; }
  std::string spec() const override { return "none"; }

 protected:
  void insert(std::int64_t first, const std::stop_token& /*stop*/) override {
    note_inserted(size() - first);
  }
  void clear() override {}
  void fields(Archive& /*archive*/) override {}
};

class NoneFactory final : public IndexFactory {
 public:
  NoneFactory() : IndexFactory({.grows = true, .finds = false}) {}
  std::string text() const override { return "none"; }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<NoneIndex>(); }
};

}  // namespace

std::shared_ptr<const IndexFactory> none_factory() { return std::make_shared<NoneFactory>(); }

}  // namespace topkv
