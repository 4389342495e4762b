// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/simulation.h"

#include <ctime>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "bench/scale/memory_meter.h"
#include "checkpoint/agreement.h"
#include "checkpoint/layout.h"
#include "checkpoint/names.h"
#include "checkpoint/save_job.h"
#include "checkpoint/sources.h"
#include "exchange/verdict.h"

namespace infercluster::scale {
namespace {

using checkpoint::Answer;
using checkpoint::Coordinator;
using checkpoint::Layout;
using checkpoint::Opening;
using checkpoint::Participant;
using checkpoint::Pieces;
using exchange::Call;

const std::string kSaveId(16, 'a');

// Of this thread: what others do on the machine does not count.
double processor_seconds() {
  timespec time{};
  IC_ASSERT(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <typename Body>
double seconds_of(const Body& body) {
  const double begin = processor_seconds();
  body();
  return processor_seconds() - begin;
}

class Simulation {
 public:
  explicit Simulation(const Job& job) : job_(job), seconds_(job.world), digests_(job.world) {
    figures_.world = job.world;
  }

  Result<Figures> run() {
    IC_CHECK(warm_up());
    IC_CHECK(open(""));
    const bool again = false;
    IC_CHECK(decide(again));
    for (std::uint64_t rank = 0; rank < job_.world; ++rank) {
      IC_CHECK(accept(rank));
    }
    end_of_save(figures_.rank_new, figures_.coordinator_new);
    IC_CHECK(commit());
    IC_CHECK(open(plan_hash_));
    IC_CHECK(decide(!again));
    end_of_save(figures_.rank_again, figures_.coordinator_again);
    summarize();
    return figures_;
  }

 private:
  // The first use of anything costs more than the others.
  Status warm_up() {
    Participant rank(0);
    IC_CHECK(rank.hold(job_.pieces(0)));
    return {};
  }

  // The openings of all ranks; with `plan_hash` a rank says that it has a plan.
  Status open(const std::string& plan_hash) {
    given_.clear();
    for (std::uint64_t rank = 0; rank < job_.world; ++rank) {
      if (plan_hash.empty()) IC_CHECK(hold(rank));
      Opening opening{.step = 1, .failure = "", .digest = digests_[rank], .plan_hash = plan_hash};
      std::string text;
      seconds_[rank] += seconds_of([&] { text = encode(opening); });
      given_.push_back(std::move(text));
    }
    return {};
  }

  Status hold(std::uint64_t rank) {
    Participant participant(rank);
    Pieces pieces = job_.pieces(rank);
    figures_.pieces += pieces.size();
    Status held;
    seconds_[rank] += seconds_of([&] { held = participant.hold(std::move(pieces)); });
    digests_[rank] = participant.digest();
    return held;
  }

  // What rank 0 makes of it, and what the speakers add.
  Status decide(bool again) {
    const std::uint64_t before = heap_bytes();
    restart_peak();
    IC_CHECK(round("begin", [&](const auto& given) { return coordinator_.open(given, 1, kSaveId); }));
    if (!answer_.speakers.empty()) {
      given_.assign(job_.world, "");
      for (const std::uint64_t rank : answer_.speakers) {
        Participant speaker(rank);
        IC_CHECK(speaker.hold(job_.pieces(rank)));
        seconds_[rank] += seconds_of([&] { given_[rank] = speaker.text_for(answer_); });
      }
      figures_.groups = answer_.speakers.size();
      IC_CHECK(round("pieces", [&](const auto& given) { return coordinator_.plan(given); }));
    }
    figures_.coordinator_bytes_peak = std::max(figures_.coordinator_bytes_peak, heap_peak() - before);
    if (!answer_.refusal.empty()) return Error(ErrorCode::internal, "the plan was refused: " + answer_.refusal);
    IC_ASSERT(answer_.reused == again);
    return {};
  }

  // As exchange::Rounds: rank 0 reads what each gave, judges, and decides.
  template <typename Decide>
  Status round(const std::string& tag, const Decide& decide) {
    std::vector<std::string> sent;
    for (const std::string& bytes : given_)
      sent.push_back(exchange::encode_contribution({Call::decide, tag, 1, bytes}));
    std::string verdict;
    Status decided;
    seconds_[0] += seconds_of([&] { decided = answer_to(sent, decide, verdict); });
    IC_CHECK(decided);
    count(sent, verdict.size());
    return {};
  }

  template <typename Decide>
  Status answer_to(const std::vector<std::string>& sent, const Decide& decide, std::string& verdict) {
    std::vector<exchange::Contribution> all;
    for (const std::string& bytes : sent) {
      IC_TRY(exchange::Contribution contribution, exchange::decode_contribution(bytes));
      all.push_back(std::move(contribution));
    }
    const exchange::Verdict judged = judge(std::move(all));
    IC_TRY(answer_, decide(std::get<exchange::Values>(judged)));
    verdict = encode_verdict(exchange::Decided{encode(answer_)});
    return {};
  }

  // A round over the store: each rank sets what it gives, gets the verdict, and erases what it gave; rank 0 gets what
  // the others gave, sets the verdict and erases the one before.
  void count(const std::vector<std::string>& sent, std::uint64_t verdict_bytes) {
    std::uint64_t others = 0;
    std::uint64_t most = 0;
    for (std::size_t rank = 1; rank < sent.size(); ++rank) {
      others += sent[rank].size();
      most = std::max<std::uint64_t>(most, sent[rank].size());
    }
    rank_.messages += 3;
    rank_.bytes_sent += most;
    rank_.bytes_received += verdict_bytes;
    all_.messages += 3 + (sent.size() - 1) + (rounds_ > 0 ? 1 : 0);
    all_.bytes_sent += sent[0].size() + verdict_bytes;
    all_.bytes_received += others;
    ++rounds_;
  }

  Status accept(std::uint64_t rank) {
    Participant participant(rank);
    Pieces pieces = job_.pieces(rank);
    const std::uint64_t before = heap_bytes();
    restart_peak();
    IC_CHECK(participant.hold(Pieces(pieces)));
    Layout layout;
    Status accepted;
    seconds_[rank] += seconds_of([&] { accepted = plan(participant, layout); });
    IC_CHECK(accepted);
    figures_.rank_bytes_peak = std::max(figures_.rank_bytes_peak, heap_peak() - before);
    figures_.rank_bytes_kept = std::max(figures_.rank_bytes_kept, heap_bytes() - before);
    plan_hash_ = participant.plan_hash();
    figures_.chunks += layout.chunks.size();
    const std::uint64_t bytes = layout.bytes - layout.header.size();
    figures_.bytes += bytes;
    most_bytes_ = std::max(most_bytes_, bytes);
    Status same;
    const double seconds = seconds_of([&] { same = participant.hold(std::move(pieces)); });
    figures_.reuse_seconds = std::max(figures_.reuse_seconds, seconds);
    IC_CHECK(same);
    const auto& sources = participant.share().sources;
    const std::uint64_t own_indexes = sources ? sources->size() : job_.world;
    figures_.own_indexes_max = std::max(figures_.own_indexes_max, own_indexes);
    figures_.own_indexes_mean += static_cast<double>(own_indexes) / static_cast<double>(job_.world);
    const std::uint64_t step = std::max<std::uint64_t>(1, job_.world / job_.indexes);
    return rank % step == 0 ? index(rank, participant.share(), layout) : Status();
  }

  Status plan(Participant& participant, Layout& layout) {
    IC_TRY(const Answer answer, checkpoint::decode_answer(encode(answer_)));
    IC_CHECK(participant.accept(answer));
    IC_TRY(layout, lay_out(participant.pieces(), participant.share().writes));
    return {};
  }

  // The index that the rank would write, and what it costs to read.
  Status index(std::uint64_t rank, const checkpoint::OwnShare& share, const Layout& layout) {
    const checkpoint::WriterFile writer{rank, 1};
    manifest::Index index;
    index.step = 1;
    index.epoch = 1;
    index.save_id = kSaveId;
    index.node = rank;
    const std::uint64_t blocks = (layout.bytes + manifest::kBlockBytes - 1) / manifest::kBlockBytes;
    index.segments.push_back(
        {checkpoint::segment_name(writer, 0), layout.bytes, std::vector<std::uint32_t>(blocks, 0xC0FFEE11)});
    index.chunks = layout.chunks;
    auto sources = share.sources ? checkpoint::encode_sources(*share.sources) : std::nullopt;
    if (sources) index.metadata.emplace_back(checkpoint::kSourcesKey, *std::move(sources));
    IC_TRY(const std::string text, build_index(index));
    Status parsed;
    const std::uint64_t before = heap_bytes();
    index_seconds_ += seconds_of([&] {
      const auto back = manifest::parse_index(text);
      if (!back.ok()) parsed = back.error();
      index_heap_ += heap_bytes() - before;
    });
    index_bytes_ += text.size();
    figures_.index_bytes_max = std::max<std::uint64_t>(figures_.index_bytes_max, text.size());
    ++indexes_;
    return parsed;
  }

  Status commit() {
    manifest::Commit commit;
    commit.step = 1;
    commit.epoch = 1;
    commit.save_id = kSaveId;
    commit.world = job_.world;
    commit.plan_hash = plan_hash_;
    for (std::uint64_t rank = 0; rank < job_.world; ++rank)
      commit.indexes.push_back({checkpoint::index_name({rank, 1}), figures_.index_bytes_max, 0xC0FFEE11});
    std::string text;
    Status done;
    figures_.commit_build_seconds = seconds_of([&] {
      auto built = build_commit(commit);
      if (built.ok())
        text = std::move(built).value();
      else
        done = built.error();
    });
    IC_CHECK(done);
    figures_.commit_bytes = text.size();
    figures_.commit_parse_seconds = seconds_of([&] {
      const auto parsed = manifest::parse_commit(text);
      if (!parsed.ok()) done = parsed.error();
    });
    return done;
  }

  // The rounds "roots" and "committed".
  void end_of_save(Traffic& rank, Traffic& coordinator) {
    std::vector<std::string> roots;
    std::vector<std::string> committed;
    for (std::uint64_t i = 0; i < job_.world; ++i) {
      const checkpoint::Root root{{checkpoint::index_name({i, 1}), 1, 1}, plan_hash_};
      roots.push_back(exchange::encode_contribution({Call::decide, "roots", 1, encode(root)}));
      committed.push_back(exchange::encode_contribution({Call::agree, "committed", 1, ""}));
    }
    count(roots, encode_verdict(exchange::Decided{}).size());
    count(committed, encode_verdict(exchange::Agreed{}).size());
    rank = std::exchange(rank_, {});
    coordinator = std::exchange(all_, {});
    rounds_ = 0;
  }

  void summarize() {
    std::vector<double> members(seconds_.begin() + 1, seconds_.end());
    std::sort(members.begin(), members.end());
    double total = seconds_[0];
    for (const double seconds : members) total += seconds;
    figures_.coordinator_seconds = seconds_[0];
    figures_.rank_seconds_max = members.empty() ? 0 : members.back();
    figures_.rank_seconds_median = members.empty() ? 0 : members[members.size() / 2];
    figures_.seconds_per_chunk = total / static_cast<double>(figures_.chunks);
    figures_.balance = static_cast<double>(most_bytes_ * job_.world) / static_cast<double>(figures_.bytes);
    const double all_indexes = static_cast<double>(job_.world) / static_cast<double>(indexes_);
    figures_.index_bytes = static_cast<std::uint64_t>(static_cast<double>(index_bytes_) * all_indexes);
    figures_.index_parse_seconds = index_seconds_ * all_indexes;
    figures_.index_heap_bytes = static_cast<std::uint64_t>(static_cast<double>(index_heap_) * all_indexes);
  }

  const Job& job_;
  Figures figures_;
  Coordinator coordinator_;
  Answer answer_;
  std::vector<double> seconds_;  // per rank
  std::vector<std::string> digests_;
  std::vector<std::string> given_;
  std::string plan_hash_;
  Traffic rank_, all_;
  std::uint64_t rounds_ = 0;
  std::uint64_t most_bytes_ = 0;
  std::uint64_t indexes_ = 0;
  std::uint64_t index_bytes_ = 0;
  double index_seconds_ = 0;
  std::uint64_t index_heap_ = 0;
};

}  // namespace

Result<Figures> simulate(const Job& job) {
  return Simulation(job).run();
}

}  // namespace infercluster::scale
