// SPDX-License-Identifier: Apache-2.0
#include "exchange/verdict.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/units.h"
#include "exchange/wire.h"

namespace infercluster::exchange {
namespace {

constexpr std::size_t kNamesMax = 16;
enum class Kind : std::uint64_t { agreed = 1, values = 2, cause = 3, decided = 4 };

Error unreadable(std::string_view what) {
  return Error(ErrorCode::corrupt, std::string(what) + " cannot be read")
      .with_hint("Do all ranks run the same version?");
}

// Enough of `bytes` to see that two differ, as hex.
std::string shown(std::string_view bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  constexpr std::size_t kShown = 16;
  std::string text;
  for (const char c : bytes.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return bytes.empty() ? "nothing" : bytes.size() > kShown ? text + "..." : text;
}

std::string name_of(const Contribution& contribution) {
  constexpr std::array<std::string_view, 3> kNames{"gather", "agree", "decide"};
  return std::string(kNames[static_cast<std::size_t>(contribution.call)]) + " \"" + contribution.tag + '"';
}

// The ranks whose `value` is not that of the most; empty where all are the same.
template <typename Value>
std::vector<int> different(const std::vector<Contribution>& all, const Value& value, std::size_t* of_the_most) {
  std::map<std::string, std::size_t> counts;
  for (const Contribution& contribution : all) ++counts[value(contribution)];
  std::size_t most = 0;
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (counts[value(all[rank])] > counts[value(all[most])]) most = rank;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (value(all[rank]) != value(all[most])) ranks.push_back(static_cast<int>(rank));
  *of_the_most = most;
  return ranks;
}

// Ranks that are not as the most are.
struct Strayed {
  const Contribution& first;
  const Contribution& most;
  std::vector<int> ranks;  // as messages call them
  std::string most_rank;
};

Strayed strayed(const std::vector<Contribution>& all, std::vector<int> ranks, std::size_t most,
                const std::vector<int>& in_job) {
  const Contribution& first = all[static_cast<std::size_t>(ranks.front())];
  for (int& rank : ranks) rank = called(in_job, rank);
  return {first, all[most], std::move(ranks), "rank " + std::to_string(called(in_job, static_cast<int>(most)))};
}

Cause lost_step(const Strayed& found) {
  return {.rank = found.ranks.front(),
          .error = Error(ErrorCode::internal, name_ranks(found.ranks) + " came to " + name_of(found.first) + " where " +
                                                  found.most_rank + " came to " + name_of(found.most))
                       .with_hint("All ranks must make the same calls in the same order")};
}

Cause disagreement(const Strayed& found) {
  const std::string differ = found.ranks.size() == 1 ? " differs from " : " differ from ";
  return {.rank = found.ranks.front(),
          .error = Error(ErrorCode::invalid_argument, name_ranks(found.ranks) + differ + found.most_rank + " in \"" +
                                                          found.first.tag + "\": " + shown(found.first.bytes) +
                                                          ", not " + shown(found.most.bytes))};
}

}  // namespace

std::string encode_contribution(const Contribution& contribution) {
  Writer out;
  out.number(static_cast<std::uint64_t>(contribution.call));
  out.text(contribution.tag);
  out.number(contribution.lowest_open);
  out.text(contribution.bytes);
  return out.take();
}

Result<Contribution> decode_contribution(std::string_view bytes) {
  Reader in(bytes);
  const auto call = in.number();
  Contribution contribution;
  contribution.tag = in.text();
  contribution.lowest_open = in.number();
  contribution.bytes = in.text();
  if (!in.complete() || call > static_cast<std::uint64_t>(Call::decide)) return unreadable("what another rank gave");
  contribution.call = static_cast<Call>(call);
  IC_CHECK(check_arguments(contribution.tag, contribution.bytes.size(), kBytesMax));
  return contribution;
}

std::string encode_verdict(const Verdict& verdict) {
  Writer out;
  if (const auto* values = std::get_if<Values>(&verdict)) {
    out.number(static_cast<std::uint64_t>(Kind::values));
    out.number(values->size());
    for (const std::string& value : *values) out.text(value);
  } else if (const auto* decided = std::get_if<Decided>(&verdict)) {
    out.number(static_cast<std::uint64_t>(Kind::decided));
    out.text(decided->bytes);
  } else if (const auto* cause = std::get_if<Cause>(&verdict)) {
    out.number(static_cast<std::uint64_t>(Kind::cause));
    out.text(encode_cause(*cause));
  } else {
    out.number(static_cast<std::uint64_t>(Kind::agreed));
  }
  return out.take();
}

Result<Verdict> decode_verdict(std::string_view bytes, int world) {
  Reader in(bytes);
  const auto kind = static_cast<Kind>(in.number());
  if (kind == Kind::agreed && in.complete()) return Verdict(Agreed{});
  if (kind == Kind::cause) {
    const std::string_view encoded = in.text();
    if (!in.complete()) return unreadable("another rank's error");
    IC_TRY(Cause cause, decode_cause(encoded));
    return Verdict(std::move(cause));
  }
  if (kind == Kind::decided) {
    Decided decided{std::string(in.text())};
    if (!in.complete()) return unreadable("rank 0's decision");
    return Verdict(std::move(decided));
  }
  if (kind != Kind::values || in.number() != static_cast<std::uint64_t>(world)) return unreadable("a verdict");
  Values values;
  for (int rank = 0; rank < world && !in.failed(); ++rank) values.emplace_back(in.text());
  if (!in.complete()) return unreadable("a verdict");
  return Verdict(std::move(values));
}

Verdict judge(std::vector<Contribution> contributions, const std::vector<int>& in_job) {
  std::size_t most = 0;
  auto lost = different(contributions, name_of, &most);
  if (!lost.empty()) return lost_step(strayed(contributions, std::move(lost), most, in_job));
  if (contributions.front().call == Call::agree) {
    const auto bytes_of = [](const Contribution& contribution) { return contribution.bytes; };
    auto differing = different(contributions, bytes_of, &most);
    if (!differing.empty()) return disagreement(strayed(contributions, std::move(differing), most, in_job));
    return Agreed{};
  }
  std::uint64_t total = 0;
  Values values;
  values.reserve(contributions.size());
  for (Contribution& contribution : contributions) {
    total += contribution.bytes.size();
    values.push_back(std::move(contribution.bytes));
  }
  if (total > kGatheredBytesMax)
    return Cause{.error =
                     Error(ErrorCode::too_large, std::to_string(values.size()) + " ranks gave " + format_bytes(total) +
                                                     " for \"" + contributions.front().tag + "\", where " +
                                                     format_bytes(kGatheredBytesMax) + " is the limit")};
  return values;
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t shown = std::min(ranks.size(), kNamesMax);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > shown) text += " and " + std::to_string(ranks.size() - shown) + " more";
  return text;
}

Cause missing_cause(const std::vector<int>& missing, std::string_view tag) {
  return {.rank = missing.front(),
          .error = Error(ErrorCode::timed_out,
                         name_ranks(missing) + " did not come to \"" + std::string(tag) + "\" before the deadline")
                       .with_hint("Look for how these processes ended, in their own logs")};
}

}  // namespace infercluster::exchange
