// SPDX-License-Identifier: Apache-2.0
#include "exchange/rounds.h"

#include <algorithm>
#include <utility>

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

// Rank 0 gives up this much before the deadline, so that its verdict reaches the others before theirs.
constexpr Clock::Duration kMarginMax = 1s;
// What telling the others may take once the deadline has passed.
constexpr Clock::Duration kGrace = 500ms;

Clock::TimePoint now() {
  return steady_clock().now();
}

}  // namespace

Status Job::open_nested(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number < next_) return number_error(number, next_);
  next_ = number + 1;
  open_.insert(number);
  return {};
}

void Job::close_nested(std::uint64_t number, std::vector<std::string> verdicts) {
  const std::lock_guard lock(mutex_);
  open_.erase(number);
  if (member_.rank == 0) closed_.emplace(number, std::move(verdicts));
}

std::uint64_t Job::lowest_open() const {
  const std::lock_guard lock(mutex_);
  return open_.empty() ? next_ : *open_.begin();
}

void Job::tidy_below(std::uint64_t number) {
  std::vector<std::string> keys;
  {
    const std::lock_guard lock(mutex_);
    const auto end = closed_.lower_bound(number);
    for (auto it = closed_.begin(); it != end; ++it) keys.insert(keys.end(), it->second.begin(), it->second.end());
    closed_.erase(closed_.begin(), end);
  }
  for (const std::string& key : keys) store_->erase(key);
}

Rounds::Rounds(std::shared_ptr<Job> job, std::optional<std::uint64_t> number)
    : job_(std::move(job)), number_(number), name_(number ? std::to_string(*number) : "job") {}

Rounds::~Rounds() {
  if (!number_) return;
  // The last round's verdict stays until all ranks have closed this; an abort may have set the next one's.
  const std::uint64_t round = round_;
  std::vector<std::string> verdicts{verdict_key(round), verdict_key(round + 1)};
  if (round > 0) verdicts.push_back(verdict_key(round - 1));
  job_->close_nested(*number_, std::move(verdicts));
}

std::string Rounds::verdict_key(std::uint64_t round) const {
  return job_->folder() + "/v/" + name_ + "." + std::to_string(round);
}

std::string Rounds::input_key(std::uint64_t round, int rank) const {
  return job_->folder() + "/in/" + name_ + "." + std::to_string(round) + "." + std::to_string(rank);
}

Result<std::vector<std::string>> Rounds::gather(std::string_view tag, std::string_view bytes, Deadline deadline) {
  IC_TRY(Outcome outcome, take_part({Call::gather, tag, bytes, kBytesMax, deadline}));
  if (auto* values = std::get_if<Values>(&*outcome.verdict)) return std::move(*values);
  return abort(Error(ErrorCode::internal, "an agreement came back for a gather"), 0, deadline);
}

Result<std::string> Rounds::decide(std::string_view tag, std::string_view bytes, const Decision& decision,
                                   Deadline deadline) {
  IC_TRY(Outcome outcome, take_part({Call::decide, tag, bytes, kBytesMax, deadline, nullptr, &decision}));
  if (auto* decided = std::get_if<Decided>(&*outcome.verdict)) return std::move(decided->bytes);
  return abort(Error(ErrorCode::internal, "another call's verdict came back for a decision"), 0, deadline);
}

Status Rounds::agree(std::string_view tag, std::string_view bytes, Deadline deadline) {
  IC_CHECK(take_part({Call::agree, tag, bytes, kAgreeBytesMax, deadline}));
  return {};
}

Status Rounds::agree_watched(std::string_view tag, std::string_view bytes, const Watch& watch, Deadline deadline) {
  IC_CHECK(take_part({Call::agree, tag, bytes, kAgreeBytesMax, deadline, nullptr, nullptr, &watch}));
  return {};
}

Status Rounds::agree_interruptible(std::string_view tag, std::string_view bytes, Deadline deadline,
                                   const Interrupt& interrupt) {
  IC_TRY(const Outcome outcome, take_part({Call::agree, tag, bytes, kAgreeBytesMax, deadline, &interrupt}));
  return outcome.interruption ? Status(*outcome.interruption) : Status();
}

// An error is the cause that ended the exchange.
Result<Rounds::Outcome> Rounds::take_part(const Wanted& wanted) {
  if (const auto ended = cause()) return ended->error;
  const std::uint64_t round = round_;
  const Status valid = check_arguments(wanted.tag, wanted.bytes.size(), wanted.bytes_max);
  Result<Outcome> outcome = valid.ok() ? play(wanted, round) : Result<Outcome>(valid.error());
  if (!outcome.ok()) {
    // This rank cannot go on; the others are told, unless they have their verdict already.
    const Cause mine = cause_of(called(rank()), outcome.error(), 0);
    auto verdict = propose(round, mine, std::max(wanted.deadline, now() + kGrace));
    if (!verdict.ok()) return end_with(mine);
    outcome = Outcome{.verdict = std::move(*verdict)};
  }
  if (outcome->interruption) return outcome;
  finish(round, *outcome->verdict);
  if (const auto* cause = std::get_if<Cause>(&*outcome->verdict)) return end_with(*cause);
  return outcome;
}

// An error is this rank's own.
Result<Rounds::Outcome> Rounds::play(const Wanted& wanted, std::uint64_t round) {
  const Contribution mine{wanted.call, std::string(wanted.tag), job_->lowest_open(), std::string(wanted.bytes)};
  IC_CHECK(job_->store().set(input_key(round, rank()), encode_contribution(mine), wanted.deadline));
  return rank() == 0 ? collect(wanted, round) : wait_for_verdict(wanted, round);
}

Result<Rounds::Outcome> Rounds::collect(const Wanted& wanted, std::uint64_t round) {
  std::vector<Contribution> all(static_cast<std::size_t>(world()));
  all[0] = {wanted.call, std::string(wanted.tag), job_->lowest_open(), std::string(wanted.bytes)};
  lowest_open_ = all[0].lowest_open;
  std::uint64_t total = wanted.bytes.size();
  const Deadline until = wanted.deadline - std::clamp<Clock::Duration>((wanted.deadline - now()) / 8, 0s, kMarginMax);
  Wanted early = wanted;
  early.deadline = until;
  for (int rank = 1; rank < world() && total <= kGatheredBytesMax; ++rank) {
    auto& contribution = all[static_cast<std::size_t>(rank)];
    IC_TRY(Outcome ended, collect_one(early, round, rank, contribution));
    if (ended.verdict || ended.interruption) return ended;
    lowest_open_ = std::min(lowest_open_, contribution.lowest_open);
    total += contribution.bytes.size();
    if (total > kGatheredBytesMax) all.resize(static_cast<std::size_t>(rank) + 1);
  }
  IC_TRY(Verdict verdict,
         propose(round, decide_upon(wanted, judge(std::move(all), job_->member().in_job)), wanted.deadline));
  return Outcome{.verdict = std::move(verdict)};
}

Verdict Rounds::decide_upon(const Wanted& wanted, Verdict judged) const {
  const auto* given = std::get_if<Values>(&judged);
  if (wanted.call != Call::decide || given == nullptr) return judged;
  Result<std::string> decided = (*wanted.decision)(*given);
  if (!decided.ok()) return cause_of(called(0), decided.error(), 0);
  const Status fits = check_arguments(wanted.tag, decided->size(), kGatheredBytesMax);
  if (!fits.ok()) return cause_of(called(0), fits.error(), 0);
  return Decided{std::move(decided).value()};
}

// An empty outcome: the rank came.
Result<Rounds::Outcome> Rounds::collect_one(const Wanted& wanted, std::uint64_t round, int rank, Contribution& into) {
  for (;;) {
    const Deadline until = std::min(wanted.deadline, now() + slice_of(job_world()));
    IC_TRY(const auto bytes, job_->store().get(input_key(round, rank), until));
    if (bytes) {
      IC_TRY(into, decode_contribution(*bytes));
      return Outcome{};
    }
    IC_TRY(auto verdict, look(round, now()));
    if (verdict) return Outcome{.verdict = std::move(*verdict)};
    if (const auto ended = cause()) return Outcome{.verdict = *ended};
    IC_TRY(Outcome seen, look_around(wanted, rank));
    if (seen.interruption) return seen;
    if (now() < wanted.deadline) continue;
    IC_TRY(const std::vector<int> missing, missing_in(round));
    if (std::ranges::find(missing, rank) == missing.end()) continue;  // it came just now
    return conclude(round, missing_from(wanted, missing));
  }
}

Result<Rounds::Outcome> Rounds::wait_for_verdict(const Wanted& wanted, std::uint64_t round) {
  for (;;) {
    IC_TRY(auto verdict, look(round, std::min(wanted.deadline, now() + slice_of(job_world()))));
    if (verdict) return Outcome{.verdict = std::move(*verdict)};
    if (const auto ended = cause()) return Outcome{.verdict = *ended};
    IC_TRY(Outcome seen, look_around(wanted, 0));
    if (seen.interruption) return seen;
    if (now() < wanted.deadline) continue;
    IC_TRY(const std::vector<int> missing, missing_in(round));
    if (!missing.empty()) return conclude(round, missing_from(wanted, missing));
    return conclude(
        round, {.rank = called(0),
                .error = Error(ErrorCode::timed_out, "rank " + std::to_string(called(0)) + " gave no answer to \"" +
                                                         std::string(wanted.tag) + "\" before the deadline of rank " +
                                                         std::to_string(called(rank())))});
  }
}

// Who has not come to the round, as far as a short look tells, which begins with rank 0.
Result<std::vector<int>> Rounds::missing_in(std::uint64_t round) {
  const Deadline until = now() + kGrace;
  std::vector<int> missing;
  for (int other = 0; other < world(); ++other) {
    if (other == rank()) continue;
    IC_TRY(const auto bytes, job_->store().get(input_key(round, other), now()));
    if (!bytes) missing.push_back(other);
    if (now() >= until && !missing.empty()) break;
  }
  return missing;
}

Cause Rounds::missing_from(const Wanted& wanted, std::vector<int> missing) const {
  for (int& rank : missing) rank = called(rank);
  return missing_cause(missing, wanted.tag);
}

Result<Rounds::Outcome> Rounds::conclude(std::uint64_t round, const Cause& cause) {
  IC_TRY(Verdict verdict, propose(round, cause, now() + kGrace));
  return Outcome{.verdict = std::move(verdict)};
}

// Between two looks while it waits for that rank. An empty outcome: it goes on waiting.
Result<Rounds::Outcome> Rounds::look_around(const Wanted& wanted, int rank) {
  if (wanted.watch != nullptr) IC_CHECK((*wanted.watch)());
  if (wanted.interrupt == nullptr) return Outcome{};
  const Status going_on = (*wanted.interrupt)(rank);
  return going_on.ok() ? Outcome{} : Outcome{.interruption = going_on.error()};
}

Result<std::optional<Verdict>> Rounds::look(std::uint64_t round, Deadline until) {
  IC_TRY(const auto bytes, job_->store().get(verdict_key(round), until));
  if (!bytes) return std::optional<Verdict>();
  IC_TRY(Verdict verdict, decode_verdict(*bytes, world()));
  return std::optional<Verdict>(std::move(verdict));
}

// The round's verdict from now on: this, or the one that came first.
Result<Verdict> Rounds::propose(std::uint64_t round, const Verdict& verdict, Deadline deadline) {
  IC_TRY(const std::string bytes, job_->store().set_if_absent(verdict_key(round), encode_verdict(verdict), deadline));
  return decode_verdict(bytes, world());
}

// Nobody reads what this rank gave once there is a verdict, nor the last verdict once all came to this round.
void Rounds::finish(std::uint64_t round, const Verdict& verdict) {
  job_->store().erase(input_key(round, rank()));
  if (std::holds_alternative<Cause>(verdict)) return;
  round_ = round + 1;
  if (rank() != 0) return;
  if (round > 0) job_->store().erase(verdict_key(round - 1));
  job_->tidy_below(lowest_open_);
}

Error Rounds::end_with(const Cause& cause) {
  const std::lock_guard lock(mutex_);
  if (!cause_) cause_ = cause;
  return cause_->error;
}

Error Rounds::abort(const Error& error, std::uint64_t bytes, Deadline deadline) {
  if (const auto ended = cause()) return ended->error;
  const Cause mine = cause_of(called(rank()), error, bytes);
  // Rounds that have their verdict are passed over. Only this rank's own thread in gather can make that more than one.
  constexpr int kRoundsMax = 16;
  std::uint64_t round = round_;
  for (int i = 0; i < kRoundsMax; ++i, ++round) {
    const auto verdict = propose(round, mine, deadline);
    if (!verdict.ok()) break;
    if (const auto* first = std::get_if<Cause>(&*verdict)) return end_with(*first);
  }
  return end_with(mine);
}

Status Rounds::check() {
  if (const auto ended = cause()) return ended->error;
  const auto verdict = look(round_, now());
  // That the store does not answer now ends nothing.
  if (!verdict.ok() || !*verdict) return {};
  const auto* cause = std::get_if<Cause>(&**verdict);
  return cause == nullptr ? Status() : Status(end_with(*cause));
}

std::optional<Cause> Rounds::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

Result<std::unique_ptr<Exchange>> Rounds::nested(std::uint64_t number) {
  IC_CHECK(job_->open_nested(number));
  return std::unique_ptr<Exchange>(std::make_unique<Rounds>(job_, number));
}

}  // namespace infercluster::exchange
