// SPDX-License-Identifier: Apache-2.0
// Pages in several pieces, and file systems that do not link.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "base/log.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/references.h"
#include "checkpoint/saved_test_helpers.h"
#include "testing/fault_files.h"
#include "testing/temp_dir.h"

namespace infercluster::checkpoint {
namespace {

using test::Dtype;
using test::flip;
using test::open_saved;
using test::whole;
using testing::FaultFiles;
using testing::FileFault;

constexpr std::size_t kPages = 12;
constexpr std::size_t kWords = 3'000;  // of a piece; each is its page's content

// Each page has a piece of keys and one of values, and one counter.
class Server {
 public:
  Server() : words_(2 * kPages * kWords), generations_(kPages) {
    for (std::size_t page = 0; page < kPages; ++page) write(page, page + 1);
  }
  void write(std::size_t page, std::uint64_t content) {
    __atomic_fetch_add(&generations_[page], 1, __ATOMIC_RELAXED);
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t i = 0; i < kWords; ++i)
        __atomic_store_n(&words_[(half * kPages + page) * kWords + i], content, __ATOMIC_RELEASE);
    }
    __atomic_fetch_add(&generations_[page], 1, __ATOMIC_RELEASE);
  }
  [[nodiscard]] State state() const {
    State state;
    for (std::size_t page = 0; page < kPages; ++page) {
      for (std::size_t half = 0; half < 2; ++half) {
        HostPiece& piece = state.pieces.emplace_back();
        piece.piece = piece_of(half, page);
        piece.data = reinterpret_cast<const std::byte*>(&words_[(half * kPages + page) * kWords]);
        piece.live_generation = &generations_[page];
        piece.page = page + 1;
      }
    }
    return state;
  }
  static Piece piece_of(std::size_t half, std::size_t page) {
    Piece piece = whole("kv/" + std::to_string(page) + (half == 0 ? "/k" : "/v"), Dtype::u64, {kWords});
    piece.sole = true;
    return piece;
  }

 private:
  std::vector<std::uint64_t> words_;
  std::vector<std::uint64_t> generations_;
};

// The content of each page; 0: its words differ.
std::vector<std::uint64_t> contents_of(const std::string& root, std::uint64_t step) {
  const auto checkpoint = open_saved(root, step);
  std::vector<std::uint64_t> words(2 * kPages * kWords);
  std::vector<Target> targets;
  for (std::size_t page = 0; page < kPages; ++page) {
    for (std::size_t half = 0; half < 2; ++half)
      targets.push_back(
          {Server::piece_of(half, page), reinterpret_cast<std::byte*>(&words[(2 * page + half) * kWords])});
  }
  const auto report = checkpoint->restore(targets, {});
  EXPECT_TRUE(report.ok()) << report.error().to_string();
  std::vector<std::uint64_t> contents;
  for (std::size_t page = 0; page < kPages; ++page) {
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(2 * page * kWords);
    const bool same = std::all_of(begin, begin + 2 * kWords, [&](std::uint64_t word) { return word == *begin; });
    contents.push_back(same ? *begin : 0);
  }
  return contents;
}

class PageReferences : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::off); }
  void TearDown() override { set_log_level(LogLevel::warning); }

  std::unique_ptr<Checkpointer> open(io::FileCalls* calls = nullptr, std::uint64_t keep = 0) {
    Options options;
    options.retention.keep = keep;
    options.calls = calls;
    return *Checkpointer::open(root_, options);
  }
  static SaveReport save(Checkpointer& checkpointer, std::uint64_t step, const State& state) {
    const auto saved = checkpointer.save(step, state, {.wait = Wait::until_durable});
    EXPECT_TRUE(saved.ok()) << saved.error().to_string();
    return saved.ok() ? (*saved)->report() : SaveReport{};
  }

  testing::TempDir temp_;
  std::string root_ = temp_.path().string();
};

TEST_F(PageReferences, ThePiecesOfAPageAreOfOneMomentWhileTheServerWrites) {
  constexpr std::uint64_t kSteps = 12;
  constexpr std::size_t kChanging = 4;  // the others are most of each segment, so it is referred to
  Server server;
  auto checkpointer = open();
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> changes{0};
  std::thread decoding([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      server.write(i % kChanging, 1000 + i);
      changes = i;
    }
  });
  std::uint64_t referred = 0;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const std::uint64_t before = changes;
    while (changes == before) std::this_thread::yield();
    referred += save(*checkpointer, step, server.state()).referred;
  }
  stop = true;
  decoding.join();
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const std::vector<std::uint64_t> contents = contents_of(root_, step);
    for (std::size_t page = 0; page < kPages; ++page) {
      ASSERT_NE(contents[page], 0U) << "step " << step << ", page " << page;
      if (page >= kChanging) {
        ASSERT_EQ(contents[page], page + 1);
      }
    }
  }
  EXPECT_GE(referred, (kSteps - 1) * 2 * (kPages - kChanging));
}

// Another place's counter may say the same number.
TEST_F(PageReferences, OneGenerationOfAnotherPageIsAnotherContent) {
  Server server;
  auto checkpointer = open();
  save(*checkpointer, 1, server.state());
  State moved = server.state();
  for (HostPiece& piece : moved.pieces) piece.page += 100;
  EXPECT_EQ(save(*checkpointer, 2, moved).referred, 0U);
  EXPECT_EQ(save(*checkpointer, 3, moved).referred, 2 * kPages);
}

TEST(ChooseReferences, APageIsReferredToWithAllOfItsPiecesOrNot) {
  Pieces pieces;
  std::vector<Content> contents;
  auto from = std::make_shared<DurablePart>();
  from->index.segments = {{"a", 500, {}}, {"b", 1000, {}}};
  // Of pages 1 and 2 the second piece lies in segment b, of which little is wanted; page 3 lies in a alone.
  const auto add = [&](const std::string& name, std::uint64_t page, std::uint64_t segment, std::uint64_t bytes) {
    pieces.push_back(whole(name, Dtype::u8, {bytes}));
    contents.push_back({2, page});
    from->index.chunks.push_back({name, Dtype::u8, {bytes}, manifest::whole_box({bytes}), segment, 0, bytes, 2});
    from->pages.push_back(page);
  };
  add("1/k", 1, 0, 100);
  add("1/v", 1, 1, 100);
  add("2/k", 2, 0, 100);
  add("2/v", 2, 1, 100);
  add("3/k", 3, 0, 200);
  std::vector<std::size_t> writes{0, 1, 2, 3, 4};
  const References none = choose_references(from, pieces, contents, writes);
  EXPECT_TRUE(none.chunks.empty());  // without them less than half of segment a is left
  EXPECT_EQ(writes.size(), 5U);
  from->index.segments[0].bytes = 400;
  const References third = choose_references(from, pieces, contents, writes);
  ASSERT_EQ(third.chunks.size(), 1U);
  EXPECT_EQ(third.chunks[0].tensor, "3/k");
  EXPECT_EQ(third.pages, std::vector<std::uint64_t>{3});
  EXPECT_EQ(writes, (std::vector<std::size_t>{0, 1, 2, 3}));
}

TEST_F(PageReferences, TwoRanksThatHoldOnePageAreRefused) {
  const Pieces pieces{Server::piece_of(0, 7)};
  const std::vector<Group> together{{"d", pieces, {0, 1}}};
  const std::vector<Group> apart{{"d", pieces, {0}}, {"e", {whole("x", Dtype::u8, {1}), pieces[0]}, {1}}};
  for (const auto& groups : {together, apart}) {
    const auto plan = plan_writes(groups, 2);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().tensor(), "kv/7/k");
    EXPECT_NE(plan.error().to_string().find("both hold it"), std::string::npos) << plan.error().to_string();
  }
  EXPECT_EQ(*decode_pieces(encode_pieces(pieces)), pieces);
}

// The file system makes no links between directories: what did not change is copied once, then written.
TEST_F(PageReferences, WithoutLinksTheSaveCopiesAndLaterOnesWrite) {
  for (const int error : {EXDEV, EPERM, EOPNOTSUPP, ENOSYS, EMLINK}) {
    const testing::TempDir temp;
    root_ = temp.path().string();
    SCOPED_TRACE(error);
    FaultFiles calls([&](std::uint64_t, std::string_view call, const std::string&) {
      return call == "link_into" ? FileFault{.error = error} : FileFault{};
    });
    auto checkpointer = open(&calls, 1);
    Server server;
    save(*checkpointer, 1, server.state());
    server.write(3, 333);
    const SaveReport second = save(*checkpointer, 2, server.state());
    EXPECT_EQ(second.referred, 2 * (kPages - 1));
    EXPECT_GT(second.bytes_copied, second.bytes_referred);
    EXPECT_NE(second.link_refusal, "");
    EXPECT_EQ(contents_of(root_, 2)[3], 333U);
    EXPECT_EQ(contents_of(root_, 2)[4], 5U);
    server.write(4, 444);
    const SaveReport third = save(*checkpointer, 3, server.state());
    EXPECT_EQ(third.referred > 0, error == EMLINK);  // the copy may be linked to again
    EXPECT_EQ(third.link_refusal.empty(), error != EMLINK);
    EXPECT_EQ(contents_of(root_, 3)[3], 333U);
    EXPECT_EQ(contents_of(root_, 3)[4], 444U);
    EXPECT_TRUE(open_saved(root_, 3)->verify({}).ok());
  }
}

TEST_F(PageReferences, DamageIsNotCopied) {
  FaultFiles calls([&](std::uint64_t, std::string_view call, const std::string&) {
    return call == "link_into" ? FileFault{.error = EMLINK} : FileFault{};
  });
  auto checkpointer = open(&calls);
  Server server;
  save(*checkpointer, 1, server.state());
  flip(root_ + "/step-1/node-0.0.1.safetensors", 100'000);
  const auto failed = checkpointer->save(2, server.state(), {.wait = Wait::until_durable});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::corrupt);
  EXPECT_NE(failed.error().to_string().find("step-1/node-0.0.1.safetensors"), std::string::npos);
  EXPECT_NE(failed.error().to_string().find("offset 65536"), std::string::npos) << failed.error().to_string();
  EXPECT_EQ(*checkpointer->steps(), std::vector<std::uint64_t>{1});
  EXPECT_EQ(save(*checkpointer, 3, server.state()).referred, 0U);
}

}  // namespace
}  // namespace infercluster::checkpoint
