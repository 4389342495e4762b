// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tier_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "exchange/exchange.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kResumptionsMax = 1024;

// One save, as the fast tiers have it.
struct Candidate {
  std::uint64_t step = 0;
  std::string save_id;
  std::uint64_t world = 0;
  std::string plan_hash;
  std::vector<std::set<std::uint64_t>> seen;  // by rank of this job: whose parts

  [[nodiscard]] std::optional<std::uint64_t> seen_by(std::uint64_t part) const {
    if (part < seen.size() && seen[part].contains(part)) return part;
    for (std::uint64_t rank = 0; rank < seen.size(); ++rank) {
      if (seen[rank].contains(part)) return rank;
    }
    return std::nullopt;
  }
  // The first rank that does not see all.
  [[nodiscard]] std::optional<std::uint64_t> lacking() const {
    for (std::uint64_t rank = 0; rank < seen.size(); ++rank) {
      if (seen[rank].size() < world) return rank;
    }
    return std::nullopt;
  }
};

// Ascending by step. Parts that contradict each other are no candidate.
std::vector<Candidate> candidates_of(const Visible& visible) {
  std::map<std::pair<std::uint64_t, std::string>, Candidate> all;
  std::set<std::pair<std::uint64_t, std::string>> odd;
  for (std::size_t rank = 0; rank < visible.size(); ++rank) {
    for (const FastPart& part : visible[rank]) {
      const std::pair key{part.step, part.save_id};
      const auto [found, first] = all.try_emplace(key);
      Candidate& candidate = found->second;
      if (first) {
        candidate = {part.step, part.save_id, part.world, part.plan_hash, {}};
        candidate.seen.resize(visible.size());
      }
      if (part.world != candidate.world || part.plan_hash != candidate.plan_hash || part.rank >= part.world)
        odd.insert(key);
      candidate.seen[rank].insert(part.rank);
    }
  }
  std::vector<Candidate> candidates;
  for (auto& [key, candidate] : all) {
    if (!odd.contains(key)) candidates.push_back(std::move(candidate));
  }
  return candidates;
}

std::string step_text(std::uint64_t step) {
  return "step " + std::to_string(step);
}

// What a root has of a step that may be loaded from it.
Result<std::optional<std::uint64_t>> step_at_root(io::FileCalls& calls, const io::Directory& root,
                                                  const WantedStep& wanted) {
  if (!wanted.step) return newest_whole_step(calls, root, wanted.stock);
  IC_TRY(const std::vector<std::uint64_t> steps, committed_steps(calls, root, wanted.stock));
  const bool found = std::find(steps.begin(), steps.end(), *wanted.step) != steps.end();
  return found ? wanted.step : std::nullopt;
}

}  // namespace

std::string encode(const std::vector<Resumption>& resumptions) {
  exchange::Writer out;
  out.number(resumptions.size());
  for (const Resumption& one : resumptions) {
    out.number(one.step);
    out.number(one.epoch);
    out.number(one.world);
    out.text(one.save_id);
    out.text(one.plan_hash);
    for (const std::uint64_t rank : one.drainers) out.number(rank);
  }
  return out.take();
}

Result<std::vector<Resumption>> decode_resumptions(std::string_view bytes) {
  const Error damaged(ErrorCode::corrupt, "what rank 0 said of the drains that go on is damaged");
  exchange::Reader in(bytes);
  std::vector<Resumption> resumptions;
  const std::uint64_t count = in.number();
  if (count > kResumptionsMax) return damaged;
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    Resumption one;
    one.step = in.number();
    one.epoch = in.number();
    one.world = in.number();
    one.save_id = in.text();
    one.plan_hash = in.text();
    if (one.world > exchange::kRanksMax) return damaged;
    for (std::uint64_t part = 0; part < one.world && !in.failed(); ++part) one.drainers.push_back(in.number());
    resumptions.push_back(std::move(one));
  }
  if (!in.complete()) return damaged;
  return resumptions;
}

Result<std::vector<Resumption>> choose_resumptions(io::FileCalls& calls, const io::Directory& root,
                                                   const Visible& visible) {
  std::vector<Resumption> chosen;
  for (const Candidate& candidate : candidates_of(visible)) {
    IC_TRY(const Standing standing, standing_of(calls, root, candidate.step, candidate.save_id));
    if (standing.is_durable || !standing.begun || chosen.size() == kResumptionsMax) continue;
    Resumption one{candidate.step, *standing.begun, candidate.world, candidate.save_id, candidate.plan_hash, {}};
    std::optional<std::uint64_t> lost;
    for (std::uint64_t part = 0; part < candidate.world && !lost; ++part) {
      const auto rank = candidate.seen_by(part);
      if (rank) one.drainers.push_back(*rank);
      if (!rank) lost = part;
    }
    if (lost) {
      log_warning(step_text(candidate.step) + " was durable on the fast tier alone, and the part of rank " +
                  std::to_string(*lost) + " is on no node of this job: an earlier step is the newest that is whole");
      continue;
    }
    chosen.push_back(std::move(one));
  }
  return chosen;
}

std::string encode(const std::optional<LoadPlace>& place) {
  exchange::Writer out;
  out.number(place ? 1 : 0);
  const LoadPlace& content = place ? *place : LoadPlace{};
  out.number(static_cast<std::uint64_t>(content.kind));
  out.number(content.step);
  out.number(content.world);
  out.text(content.save_id);
  out.number(content.is_at_root ? 1 : 0);
  out.text(content.notice);
  return out.take();
}

Result<std::optional<LoadPlace>> decode_place(std::string_view bytes) {
  exchange::Reader in(bytes);
  const bool found = in.number() == 1;
  const std::uint64_t kind = in.number();
  LoadPlace place;
  place.kind = static_cast<LoadPlace::Kind>(kind);
  place.step = in.number();
  place.world = in.number();
  place.save_id = in.text();
  place.is_at_root = in.number() == 1;
  place.notice = in.text();
  if (!in.complete() || kind > static_cast<std::uint64_t>(LoadPlace::Kind::draining))
    return Error(ErrorCode::corrupt, "what rank 0 said of the step to load is damaged");
  return found ? std::optional(place) : std::nullopt;
}

Result<std::optional<LoadPlace>> choose_place(io::FileCalls& calls, const io::Directory& root, const Visible& visible,
                                              const WantedStep& wanted) {
  using Found = std::optional<LoadPlace>;
  IC_TRY(const auto at_root, step_at_root(calls, root, wanted));
  const std::vector<Candidate> candidates = candidates_of(visible);
  std::string notice = "no fast tier has this step";
  for (auto candidate = candidates.rbegin(); candidate != candidates.rend(); ++candidate) {
    const std::uint64_t step = candidate->step;
    if (wanted.step && step != *wanted.step) continue;
    if (at_root && step < *at_root) break;
    IC_TRY(const Standing standing, standing_of(calls, root, step, candidate->save_id));
    if (!standing.is_durable && !standing.begun) continue;  // the root has dropped it, or has another
    const auto lacking = candidate->lacking();
    if (!lacking)
      return Found(
          LoadPlace{LoadPlace::Kind::fast, step, candidate->world, candidate->save_id, standing.is_durable, {}});
    const std::string reason =
        "the fast tier of rank " + std::to_string(*lacking) + " does not have all parts of " + step_text(step);
    if (standing.is_durable) {
      notice = reason;
    } else if (wanted.is_draining(step)) {
      return Found(LoadPlace{LoadPlace::Kind::draining, step, 0, {}, false, {}});
    } else {
      notice = reason + ", which was not durable at the root";
    }
  }
  if (!at_root) return Found();
  return Found(LoadPlace{LoadPlace::Kind::root, *at_root, 0, {}, true, "read from the root: " + notice});
}

}  // namespace infercluster::checkpoint
