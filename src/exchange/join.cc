// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job meet. Every rank draws a random word and sets it as hello/RANK. Rank 0 reads them all and sets
// the roster: a fresh folder for this job, and the words it is for. A rank follows only a roster that has its word, so
// a killed run's roster leads nobody astray. Rank 0 begins by wiping what a killed run left as hello/RANK: whoever is
// alive says it again. And it watches them until all ranks have come to the first round in the folder, and sets another
// roster when one changes: a process was started anew.

#include <algorithm>
#include <mutex>

#include "base/random.h"
#include "exchange/rounds.h"
#include "exchange/wire.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kProtocol = 1;
constexpr std::string_view kFirstRound = "open";
constexpr std::string_view kHelloFolder = "hello";
constexpr std::string_view kRosterKey = "roster";

Clock::TimePoint now() {
  return steady_clock().now();
}

std::string hello_key(int rank) {
  return std::string(kHelloFolder) + "/" + std::to_string(rank);
}

struct Hello {
  std::string word;  // 32 hexadecimal digits
  int world = 0;
  friend bool operator==(const Hello&, const Hello&) = default;
};

std::string encode(const Hello& hello) {
  Writer out;
  out.number(kProtocol);
  out.number(static_cast<std::uint64_t>(hello.world));
  out.text(hello.word);
  return out.take();
}

// nullopt: of another version, or no hello at all; not there, then.
std::optional<Hello> decode_hello(std::string_view bytes) {
  Reader in(bytes);
  const auto protocol = in.number();
  const auto world = in.number();
  Hello hello{std::string(in.text()), static_cast<int>(world)};
  if (!in.complete() || protocol != kProtocol || world > kRanksMax || hello.word.empty()) return std::nullopt;
  return hello;
}

struct Roster {
  std::string folder = {};
  std::vector<std::string> words = {};  // by rank; empty: did not come
  std::string failure = {};             // an encoded cause, where rank 0 gave up
};

std::string encode(const Roster& roster) {
  Writer out;
  out.number(kProtocol);
  out.text(roster.folder);
  out.text(roster.failure);
  out.number(roster.words.size());
  for (const std::string& word : roster.words) out.text(word);
  return out.take();
}

std::optional<Roster> decode_roster(std::string_view bytes) {
  Reader in(bytes);
  const auto protocol = in.number();
  Roster roster;
  roster.folder = in.text();
  roster.failure = in.text();
  const auto count = in.number();
  if (in.failed() || protocol != kProtocol || count > kRanksMax) return std::nullopt;
  for (std::uint64_t i = 0; i < count; ++i) roster.words.emplace_back(in.text());
  return in.complete() ? std::optional<Roster>(std::move(roster)) : std::nullopt;
}

// This rank's word in the store, and what must go when the last rank leaves.
class Membership {
 public:
  Membership(std::shared_ptr<Store> store, Member member)
      : store_(std::move(store)), member_(std::move(member)), hello_{random_hex(16), member_.world} {}
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  ~Membership() {
    if (!said_) return;
    const auto bytes = store_->get(hello_key(member_.rank), now());
    if (!bytes.ok() || !*bytes || decode_hello(**bytes) != hello_) return;  // a newer job's
    store_->erase(hello_key(member_.rank));
    if (!store_->erase_folder_if_empty(std::string(kHelloFolder))) return;
    const auto roster = store_->get(std::string(kRosterKey), now());
    if (!roster.ok() || !*roster) return;
    const auto decoded = decode_roster(**roster);
    if (!decoded || decoded->folder != folder_) return;
    store_->erase_folder(folder_);
    store_->erase(std::string(kRosterKey));
  }

  [[nodiscard]] const std::string& word() const { return hello_.word; }
  // After a failure: the others look who came.
  void stay() { said_ = false; }
  void set_folder(std::string folder) { folder_ = std::move(folder); }

  Status say(Deadline deadline) {
    said_ = true;
    return store_->set(hello_key(member_.rank), encode(hello_), deadline);
  }

  // Says it again where it has gone. Errors: changed (another process says that it is this rank).
  Status renew(Deadline deadline) {
    IC_TRY(const auto bytes, store_->get(hello_key(member_.rank), now()));
    const auto hello = bytes ? decode_hello(*bytes) : std::nullopt;
    if (!hello) return say(deadline);
    if (*hello == hello_) return {};
    return Error(ErrorCode::changed, "another process came as rank " +
                                         std::to_string(called(member_.in_job, member_.rank)) + " of the same job")
        .with_hint("Give each job a name, or a store, of its own");
  }

 private:
  const std::shared_ptr<Store> store_;
  const Member member_;
  const Hello hello_;
  std::string folder_;
  bool said_ = false;
};

class Joiner {
 public:
  Joiner(std::shared_ptr<Store> store, Member member, Deadline deadline)
      : store_(std::move(store)),
        member_(std::move(member)),
        deadline_(deadline),
        slice_(slice_of(member_.ranks_at_store())),
        membership_(std::make_shared<Membership>(store_, member_)) {}

  Result<std::unique_ptr<Exchange>> join() {
    if (member_.rank == 0) {
      IC_CHECK(wipe());
    }
    IC_CHECK(membership_->say(deadline_));
    auto exchange = member_.rank == 0 ? lead() : follow();
    if (!exchange.ok()) membership_->stay();
    return exchange;
  }

 private:
  Status wipe();
  Result<std::unique_ptr<Exchange>> lead();
  Result<std::unique_ptr<Exchange>> follow();
  Result<std::optional<Hello>> hello_of(int rank, Deadline until);
  Result<std::vector<Hello>> wait_for_hellos();
  Cause missing();
  Error tell(Cause cause);
  Status set_roster(Roster roster);
  Result<std::optional<Roster>> roster_for_me(Deadline until);
  Result<std::unique_ptr<Exchange>> meet(const std::string& folder, const Rounds::Interrupt& interrupt, bool* again);

  const std::shared_ptr<Store> store_;
  const Member member_;
  const Deadline deadline_;
  const Clock::Duration slice_;
  const std::shared_ptr<Membership> membership_;
};

// Not every store can erase: what cannot be read as a hello is none.
Status Joiner::wipe() {
  store_->erase_all();
  for (int rank = 0; rank < member_.world; ++rank) {
    IC_TRY(const auto left, store_->get(hello_key(rank), now()));
    if (left) {
      IC_CHECK(store_->set(hello_key(rank), "", deadline_));
    }
  }
  return {};
}

Result<std::optional<Hello>> Joiner::hello_of(int rank, Deadline until) {
  IC_TRY(const auto bytes, store_->get(hello_key(rank), until));
  return bytes ? decode_hello(*bytes) : std::nullopt;
}

// Rank 0's words for all ranks: it gives up a little before the others do, so that they learn why.
Result<std::vector<Hello>> Joiner::wait_for_hellos() {
  const Deadline until = deadline_ - std::clamp<Clock::Duration>((deadline_ - now()) / 8, 0s, 1s);
  std::vector<Hello> hellos(static_cast<std::size_t>(member_.world));
  for (int rank = 0; rank < member_.world; ++rank) {
    std::optional<Hello> hello;
    while (!hello) {
      IC_TRY(hello, hello_of(rank, std::min(until, now() + slice_)));
      if (hello) break;
      IC_CHECK(membership_->renew(deadline_));
      if (now() >= until) return tell(missing());
    }
    hellos[static_cast<std::size_t>(rank)] = *hello;
  }
  return hellos;
}

// Who has not come, as far as a short look tells; for messages.
Cause Joiner::missing() {
  const Deadline until = now() + 500ms;
  std::vector<int> missing;
  for (int rank = 0; rank < member_.world && (missing.empty() || now() < until); ++rank) {
    const auto hello = hello_of(rank, now());
    if (hello.ok() && !*hello) missing.push_back(called(member_.in_job, rank));
  }
  if (!missing.empty()) return missing_cause(missing, kFirstRound);
  const int first = called(member_.in_job, 0);
  return {.rank = first,
          .error = Error(ErrorCode::timed_out,
                         "rank " + std::to_string(first) + " gave no answer to \"open\" before the deadline")};
}

Error Joiner::tell(Cause cause) {
  Roster roster{.failure = encode_cause(cause)};
  for (int rank = 0; rank < member_.world; ++rank) {
    const auto hello = hello_of(rank, now());
    roster.words.push_back(hello.ok() && *hello ? (*hello)->word : std::string());
  }
  (void)set_roster(std::move(roster));  // where it cannot be told, the others' own deadlines end them
  return std::move(cause.error);
}

Status Joiner::set_roster(Roster roster) {
  return store_->set(std::string(kRosterKey), encode(roster), std::max(deadline_, now() + 500ms));
}

// The roster, where it is one for this very process.
Result<std::optional<Roster>> Joiner::roster_for_me(Deadline until) {
  IC_TRY(const auto bytes, store_->get(std::string(kRosterKey), until));
  if (!bytes) return std::optional<Roster>();
  auto roster = decode_roster(*bytes);
  const auto mine = static_cast<std::size_t>(member_.rank);
  if (!roster || mine >= roster->words.size() || roster->words[mine] != membership_->word())
    return std::optional<Roster>();
  return roster;
}

// The first round. `again`: the watch ended it.
Result<std::unique_ptr<Exchange>> Joiner::meet(const std::string& folder, const Rounds::Interrupt& interrupt,
                                               bool* again) {
  *again = false;
  const auto noted = [&](int rank) {
    const Status status = interrupt(rank);
    *again = !status.ok();
    return status;
  };
  membership_->set_folder(folder);
  auto rounds = std::make_unique<Rounds>(std::make_shared<Job>(store_, member_, folder, membership_), std::nullopt);
  IC_CHECK(rounds->agree_interruptible(kFirstRound, std::to_string(member_.world), deadline_, noted));
  return std::unique_ptr<Exchange>(std::move(rounds));
}

Result<std::unique_ptr<Exchange>> Joiner::lead() {
  for (;;) {
    IC_TRY(const std::vector<Hello> hellos, wait_for_hellos());
    for (int rank = 0; rank < member_.world; ++rank) {
      const int world = hellos[static_cast<std::size_t>(rank)].world;
      if (world == member_.world) continue;
      const int other = called(member_.in_job, rank);
      return tell(
          {.rank = other,
           .error = Error(ErrorCode::invalid_argument,
                          "rank " + std::to_string(other) + " is one of " + std::to_string(world) + ", rank " +
                              std::to_string(called(member_.in_job, 0)) + " of " + std::to_string(member_.world))});
    }
    Roster roster{.folder = "job-" + random_hex(16)};
    for (const Hello& hello : hellos) roster.words.push_back(hello.word);
    const std::string folder = roster.folder;
    IC_CHECK(set_roster(std::move(roster)));
    const auto watch = [&](int rank) -> Status {
      IC_CHECK(membership_->renew(deadline_));
      IC_TRY(const auto hello, hello_of(rank, now()));
      if (!hello || *hello == hellos[static_cast<std::size_t>(rank)]) return {};
      return Error(ErrorCode::changed, "rank " + std::to_string(rank) + " came anew");
    };
    bool again = false;
    auto exchange = meet(folder, watch, &again);
    if (!again) return exchange;
    store_->erase_folder(folder);
    IC_CHECK(membership_->renew(deadline_));  // what ends a wait may also be that another rank 0 came
  }
}

Result<std::unique_ptr<Exchange>> Joiner::follow() {
  for (;;) {
    IC_TRY(const auto roster, roster_for_me(std::min(deadline_, now() + slice_)));
    if (!roster) {
      IC_CHECK(membership_->renew(deadline_));
      if (now() >= deadline_) return missing().error;
      continue;
    }
    if (!roster->failure.empty()) {
      IC_TRY(Cause cause, decode_cause(roster->failure));
      return std::move(cause.error);
    }
    const auto watch = [&](int) -> Status {
      IC_CHECK(membership_->renew(deadline_));
      IC_TRY(const auto newer, roster_for_me(now()));
      if (!newer || newer->folder == roster->folder) return {};
      return Error(ErrorCode::changed, "rank 0 set another roster");
    };
    bool again = false;
    auto exchange = meet(roster->folder, watch, &again);
    if (!again) return exchange;
    IC_CHECK(membership_->renew(deadline_));
  }
}

}  // namespace

Result<std::unique_ptr<Exchange>> open_over_store(std::shared_ptr<Store> store, Member member, Deadline deadline) {
  if (member.world < 1 || member.world > kRanksMax || member.rank < 0 || member.rank >= member.world)
    return Error(ErrorCode::invalid_argument,
                 "rank " + std::to_string(member.rank) + " of " + std::to_string(member.world) +
                     " is not 0 to world - 1, with at most " + std::to_string(kRanksMax) + " ranks");
  const bool is_part =
      member.in_job.size() == static_cast<std::size_t>(member.world) &&
      std::ranges::all_of(member.in_job, [&](int rank) { return rank >= 0 && rank < member.job_world; });
  if (!member.in_job.empty() && (!is_part || member.job_world > kRanksMax))
    return Error(ErrorCode::invalid_argument, "these are no " + std::to_string(member.world) + " ranks of a job of " +
                                                  std::to_string(member.job_world));
  if (member.world == 1) return make_single();
  return Joiner(std::move(store), std::move(member), deadline).join();
}

}  // namespace infercluster::exchange
