#include "src/device/host/scanner.h"

#include <algorithm>
#include <utility>

#include "index/common/scratch.h"
#include "src/core/io/faults.h"
#include "src/core/threads/threads.h"
#include "src/device/tail_figures.h"

namespace topkv {
namespace {

constexpr std::int64_t most_lists = 16;  // of a token: work for this number of threads

HostScanner& scanner(const CodeScanner::Scan& part) {
  return static_cast<HostScanner&>(*part.scanner);
}

const HostCodes& codes_of(const std::shared_ptr<const DeviceIndex>& codes) {
  return static_cast<const HostCodes&>(*codes);
}

}  // namespace

HostScanner::HostScanner(const SessionShape& shape)
    : CodeScanner(std::clamp<std::int64_t>(most_lists / shape.attention.kv_heads, 1, 8)),
      shape_(shape) {}

void HostScanner::scan_own(std::shared_ptr<const DeviceIndex> codes) {
  own_codes_ = std::move(codes);
}

void HostScanner::begin_step(const TokenQueries& queries, PartialView out) {
  queries_ = queries;
  out_ = out;
  scanned_ = false;
  has_estimate_ = false;
}

void HostScanner::scan(std::int64_t layer, std::span<const Scan> parts) {
  reach_fault("session.scan");
  for (const Scan& part : parts) scanner(part).begin_scan(part);
  scan(codes_of(shape_.index), layer, parts, &HostScanner::of_context_);
  for (const Scan& part : parts) {
    const HostScanner& of = scanner(part);
    if (!part.own.empty()) scan(codes_of(of.own_codes_), layer, {&part, 1}, &HostScanner::of_own_);
  }
  for (const Scan& part : parts) scanner(part).end_scan(part);
}

/// to: the place of the results, in each session's scanner.
void HostScanner::scan(const HostCodes& codes, std::int64_t layer, std::span<const Scan> parts,
                       Found HostScanner::*to) {
  const AttentionShape& a = scanner(parts[0]).shape_.attention;
  parallel_for(a.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<std::vector<PassToken>> tokens;
    for (std::int64_t head = begin; head < end; ++head) {
      const CodePass& of = codes.pass(layer, head);
      CodePass pass = of;
      // Sessions that want the same number of rows and the same tail go together.
      for (std::size_t first = 0; first < parts.size();) {
        const auto wanted = [&](const Scan& part) {
          return listed_per_row * std::min(part.rows, of.rows.count());
        };
        pass.wanted = wanted(parts[first]);
        const auto tail = [&](const Scan& part) { return part.tail ? of.tail : nullptr; };
        pass.tail = tail(parts[first]);
        tokens->clear();
        for (; first < parts.size() && wanted(parts[first]) == pass.wanted &&
               tail(parts[first]) == pass.tail;
             ++first) {
          scanner(parts[first]).add_tokens(parts[first], head, to, *tokens);
        }
        pass.run(*tokens);
      }
    }
  });
}

/// Makes room for the results of a scan of some tokens of the step.
void HostScanner::begin_scan(const Scan& scan) {
  const AttentionShape& a = shape_.attention;
  const std::int64_t head_steps = std::ssize(scan.allowed);
  const std::int64_t heads = queries_.tokens * a.q_heads;
  const bool own = !scan.own.empty();
  if (!std::exchange(scanned_, true)) {
    of_context_.reset(heads, a.head_dim);
    if (own) of_own_.reset(heads, a.head_dim);
  }
  has_estimate_ = scan.tail && !shape_.has_row_rules;
  of_context_.reset_lists(head_steps);
  if (own) of_own_.reset_lists(head_steps);
}

void HostScanner::add_tokens(const Scan& scan, std::int64_t head, Found HostScanner::*to,
                             std::vector<PassToken>& tokens) {
  const AttentionShape& a = shape_.attention;
  Found& found = this->*to;
  const TailParts parts = found.parts();
  const auto allowed = to == &HostScanner::of_own_ ? scan.own : scan.allowed;
  for (std::int64_t i = head; i < std::ssize(allowed); i += a.kv_heads) {
    const std::int64_t token = scan.token + i / a.kv_heads;
    const std::int64_t at = token * a.q_heads + head * a.group();
    tokens.push_back({.queries = queries_.query(token, head * a.group()),
                      .allowed = allowed[static_cast<std::size_t>(i)],
                      .listed = &found.listed[static_cast<std::size_t>(i)],
                      .parts = parts.part(at, a.group())});
  }
}

/// Rare rows join the rows that are attended exactly. The tail of the session's own rows joins the
/// tail of the context.
void HostScanner::end_scan(const Scan& scan) {
  if (shape_.has_row_rules) return;
  const std::int64_t first = scan.token * shape_.attention.q_heads;
  const std::int64_t heads = std::ssize(scan.allowed) * shape_.attention.group();
  const PartialView out = out_.part(first, heads);
  merge(out, of_context_.rare.view().part(first, heads));
  if (scan.own.empty()) return;
  merge(out, of_own_.rare.view().part(first, heads));
  if (!scan.tail) return;
  const TailParts to = of_context_.parts();
  const TailParts own = of_own_.parts();
  for (std::int64_t head = first; head < first + heads; ++head)
    join_tails(to.estimate.part(head), to.noise[head], own.estimate.part(head), own.noise[head]);
}

void HostScanner::drain_list(const List& list, Wait /*wait*/, ArrivingRows& rows) {
  const auto& listed =
      (list.own ? of_own_ : of_context_)
          .listed[static_cast<std::size_t>(list.token * shape_.attention.kv_heads + list.kv_head)];
  const std::int64_t count = std::ssize(listed);
  const std::int64_t end = count * (list.number + 1) / lists();
  for (std::int64_t i = count * list.number / lists(); i < end; ++i)
    rows.add(listed[static_cast<std::size_t>(i)]);
}

}  // namespace topkv
