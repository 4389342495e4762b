// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/agreement.h"

#include <algorithm>

#include "base/log.h"
#include "exchange/cause.h"
#include "exchange/wire.h"

namespace infercluster::checkpoint {
namespace {

Error damaged(const char* what) {
  return Error(ErrorCode::corrupt, std::string(what) + " at the beginning of a save is damaged")
      .with_hint("Do all ranks run the same version?");
}

Error disagreement(std::size_t rank, const Opening& its, const Opening& first) {
  return Error(ErrorCode::invalid_argument, "rank " + std::to_string(rank) + " saves step " + std::to_string(its.step) +
                                                ", and rank 0 step " + std::to_string(first.step) +
                                                (its.exists != first.exists ? ", with another `exists`" : ""))
      .with_hint("All ranks save the same steps in the same order");
}

}  // namespace

std::string encode(const Opening& opening) {
  exchange::Writer out;
  out.number(opening.step);
  out.number(opening.exists == Exists::replace ? 1 : 0);
  out.number(opening.failed_number);
  out.text(opening.failure);
  out.text(opening.digest);
  out.text(opening.plan_hash);
  return out.take();
}

Result<Opening> decode_opening(std::string_view bytes) {
  exchange::Reader in(bytes);
  Opening opening;
  opening.step = in.number();
  opening.exists = in.number() == 1 ? Exists::replace : Exists::error;
  opening.failed_number = in.number();
  opening.failure = in.text();
  opening.digest = in.text();
  opening.plan_hash = in.text();
  if (!in.complete()) return damaged("what a rank said");
  return opening;
}

std::string encode(const Answer& answer) {
  exchange::Writer out;
  out.number(answer.epoch);
  out.text(answer.save_id);
  out.number(answer.failed_number);
  out.text(answer.refusal);
  out.number(answer.speakers.size());
  for (const std::uint64_t rank : answer.speakers) out.number(rank);
  out.number(answer.reused ? 1 : 0);
  out.text(answer.plan);
  return out.take();
}

Result<Answer> decode_answer(std::string_view bytes) {
  exchange::Reader in(bytes);
  Answer answer;
  answer.epoch = in.number();
  answer.save_id = in.text();
  answer.failed_number = in.number();
  answer.refusal = in.text();
  const std::uint64_t speakers = in.number();
  if (speakers > bytes.size()) return damaged("what rank 0 said");
  for (std::uint64_t i = 0; i < speakers && !in.failed(); ++i) answer.speakers.push_back(in.number());
  answer.reused = in.number() == 1;
  answer.plan = in.text();
  if (!in.complete()) return damaged("what rank 0 said");
  return answer;
}

Result<Answer> Coordinator::open(const std::vector<std::string>& texts, std::uint64_t epoch, std::string save_id) {
  std::vector<Opening> openings;
  openings.reserve(texts.size());
  for (const std::string& text : texts) {
    IC_TRY(Opening opening, decode_opening(text));
    openings.push_back(std::move(opening));
  }
  base_ = {};
  base_.epoch = epoch;
  base_.save_id = std::move(save_id);
  const Opening& first = openings.front();
  bool reused = !first.plan_hash.empty();
  for (const Opening& opening : openings) {
    if (opening.failed_number != 0 && base_.refusal.empty()) base_.refusal = opening.failure;
    base_.failed_number = std::max(base_.failed_number, opening.failed_number);
    reused = reused && opening.plan_hash == first.plan_hash;
  }
  if (!base_.refusal.empty()) return base_;
  for (std::size_t rank = 1; rank < openings.size(); ++rank) {
    if (openings[rank].step != first.step || openings[rank].exists != first.exists)
      return refuse(disagreement(rank, openings[rank], first));
  }
  if (reused) {
    Answer answer = base_;
    answer.reused = true;
    return answer;
  }
  world_ = openings.size();
  groups_.clear();
  std::unordered_map<std::string_view, std::size_t> by_digest;
  for (std::size_t rank = 0; rank < openings.size(); ++rank) {
    const auto [group, fresh] = by_digest.try_emplace(openings[rank].digest, groups_.size());
    if (fresh) groups_.push_back({openings[rank].digest, {}, {}});
    groups_[group->second].ranks.push_back(rank);
  }
  Answer answer = base_;
  for (Group& group : groups_) {
    const auto known = known_.find(group.digest);
    if (known == known_.end())
      answer.speakers.push_back(group.ranks.front());
    else
      group.pieces = std::move(known->second);
  }
  known_.clear();
  return answer.speakers.empty() ? plan_groups() : answer;
}

Result<Answer> Coordinator::plan(const std::vector<std::string>& texts) {
  for (Group& group : groups_) {
    const std::string& text = texts[group.ranks.front()];
    if (text.empty()) continue;  // known
    if (digest_of(text) != group.digest) return damaged("what a rank said of its tensors");
    IC_TRY(group.pieces, decode_pieces(text));
  }
  return plan_groups();
}

Answer Coordinator::plan_groups() {
  const Result<Plan> plan = plan_writes(groups_, world_);
  Answer answer = plan.ok() ? base_ : refuse(plan.error());
  if (plan.ok()) {
    answer.plan = encode_plan(*plan, groups_);
    if (plan->copies > 0) {
      log_info("several meshes hold copies of " + std::to_string(plan->copies) + " tensors, as of \"" + plan->copy +
               "\"; one copy of each is saved");
    }
  }
  for (Group& group : groups_) known_.emplace(group.digest, std::move(group.pieces));
  groups_.clear();
  return answer;
}

Answer Coordinator::refuse(const Error& error) const {
  Answer answer = base_;
  answer.refusal = exchange::encode_cause({0, 0, error});
  return answer;
}

Status Participant::hold(Pieces pieces) {
  if (!digest_.empty() && pieces == pieces_) return {};
  plan_hash_.clear();
  digest_.clear();
  pieces_ = std::move(pieces);
  IC_CHECK(check_held(pieces_, rank_));
  digest_ = digest_of(encode_pieces(pieces_));
  return {};
}

std::string Participant::text_for(const Answer& answer) const {
  const bool speaks = std::find(answer.speakers.begin(), answer.speakers.end(), rank_) != answer.speakers.end();
  return speaks ? encode_pieces(pieces_) : "";
}

Status Participant::accept(const Answer& answer) {
  if (answer.reused) return {};
  IC_TRY(const OwnPlan plan, decode_plan(answer.plan, digest_, pieces_.size()));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (plan.writers[i] == kByPlacement && !pieces_[i].sharding) return damaged("what rank 0 said of the plan");
  }
  share_ = own_share(pieces_, rank_, plan.writers);
  plan_hash_ = plan.hash;
  return {};
}

}  // namespace infercluster::checkpoint
