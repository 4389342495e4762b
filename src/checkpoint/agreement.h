// SPDX-License-Identifier: Apache-2.0
// How a save begins: what each rank says, what rank 0 makes of it, and what each rank then knows. Pure.
//
// In the round "begin" each rank gives the digest of what it holds. Where all hold what they held when they last
// agreed, rank 0 answers that the plan stands; else it names one rank of each group whose text it does not know, and in
// the round "pieces" those ranks give it. So a rank sends and receives the same small number of bytes in a world of any
// size, and rank 0 each text once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/directory.h"
#include "checkpoint/plan.h"

namespace infercluster::checkpoint {

struct Opening {
  std::uint64_t step = 0;
  Exists exists = Exists::error;
  std::uint64_t failed_number = 0;  // an earlier save that failed, and nobody was told yet; 0: none
  std::string failure;              // its cause, encoded
  std::string digest;               // of the rank's pieces
  std::string plan_hash;            // of the plan that it has for just these; empty: none
};
std::string encode(const Opening& opening);
Result<Opening> decode_opening(std::string_view bytes);

struct Answer {
  std::uint64_t epoch = 0;
  std::string save_id;
  std::uint64_t failed_number = 0;      // the highest of the openings
  std::string refusal;                  // a cause, encoded: there is no save; nothing below counts
  std::vector<std::uint64_t> speakers;  // ranks whose pieces are wanted: the round "pieces" follows
  bool reused = false;                  // the plan that all have stands
  std::string plan;                     // encoded, where it does not
};
std::string encode(const Answer& answer);
Result<Answer> decode_answer(std::string_view bytes);

// Rank 0's part. An error: what a rank gave cannot be read.
class Coordinator {
 public:
  // What to answer to the openings, one per rank.
  Result<Answer> open(const std::vector<std::string>& openings, std::uint64_t epoch, std::string save_id);
  // ... and to the pieces of the speakers, by rank; the others gave nothing.
  Result<Answer> plan(const std::vector<std::string>& texts);

 private:
  Answer refuse(const Error& error) const;
  Answer plan_groups();

  Answer base_;                // of the save that is beginning
  std::vector<Group> groups_;  // of it; without pieces where they are not known yet
  std::uint64_t world_ = 0;
  std::unordered_map<std::string, Pieces> known_;  // by digest: of the last groups
};

// Every rank's part, rank 0 included.
class Participant {
 public:
  explicit Participant(std::uint64_t rank) : rank_(rank) {}

  // What it is about to save. Errors: pieces that are not in order by themselves.
  Status hold(Pieces pieces);
  [[nodiscard]] const std::string& digest() const { return digest_; }
  [[nodiscard]] const std::string& plan_hash() const { return plan_hash_; }
  // For the round "pieces": what this rank gives.
  [[nodiscard]] std::string text_for(const Answer& answer) const;
  // An answer without speakers and without a refusal.
  Status accept(const Answer& answer);

  [[nodiscard]] const Pieces& pieces() const { return pieces_; }
  [[nodiscard]] const OwnShare& share() const { return share_; }  // of pieces()

 private:
  const std::uint64_t rank_;
  Pieces pieces_;
  std::string digest_;
  std::string plan_hash_;  // empty: no plan for pieces_
  OwnShare share_;
};

}  // namespace infercluster::checkpoint
