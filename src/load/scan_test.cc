// SPDX-License-Identifier: Apache-2.0
#include "load/scan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>

#include "base/units.h"
#include "testing/temp_dir.h"

namespace infercluster::load {
namespace {

std::string random_text(std::size_t count, std::uint32_t seed) {
  std::mt19937_64 generator(seed);
  std::string text(align_up(count, 8), '\0');
  for (std::size_t i = 0; i < text.size(); i += 8) {
    const std::uint64_t word = generator();
    std::copy_n(reinterpret_cast<const char*>(&word), 8, text.data() + i);
  }
  text.resize(count);
  return text;
}

class Scan : public ::testing::TestWithParam<std::tuple<io::BackendChoice, io::DirectPolicy>> {
 protected:
  std::unique_ptr<Scanner> open_scanner() const {
    Environment environment;
    environment.clock = &steady_clock();
    ScanOptions options;
    options.backend.choice = std::get<0>(GetParam());
    options.direct = std::get<1>(GetParam());
    auto scanner = Scanner::open(options, environment);
    EXPECT_TRUE(scanner.ok()) << scanner.error().to_string();
    return std::move(*scanner);
  }

  static Scanner::Visit append_to(std::string& text) {
    return [&text](std::span<const std::byte> bytes) -> Status {
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    };
  }

  testing::TempDir directory_;
};

TEST_P(Scan, VisitsAllBytesInOrderWhateverTheSize) {
  const auto scanner = open_scanner();
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 37 * kMiB + 123}) {
    const std::string content = random_text(size, 1);
    const std::string path = directory_.write("file", content);
    std::string seen;
    const auto scanned = scanner->scan(path, append_to(seen), {});
    ASSERT_TRUE(scanned.ok()) << scanned.error().to_string();
    EXPECT_EQ(scanned->identity.size, size);
    EXPECT_TRUE(seen == content) << size;
  }
}

TEST_P(Scan, AnErrorOfTheVisitorEndsItAndTheScannerStaysUsable) {
  const auto scanner = open_scanner();
  const std::string content = random_text(40 * kMiB, 2);
  const std::string path = directory_.write("file", content);
  int visits = 0;
  const auto failed = scanner->scan(path,
                                    [&](std::span<const std::byte>) -> Status {
                                      if (++visits == 3) return Error(ErrorCode::corrupt, "enough");
                                      return {};
                                    },
                                    {});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message(), "enough");
  EXPECT_EQ(visits, 3);
  std::string seen;
  ASSERT_TRUE(scanner->scan(path, append_to(seen), {}).ok());
  EXPECT_TRUE(seen == content);
}

TEST_P(Scan, IsCancelledWhenItMayNotGoOn) {
  const auto scanner = open_scanner();
  const std::string path = directory_.write("file", random_text(40 * kMiB, 3));
  int asked = 0;
  std::string seen;
  const auto cancelled = scanner->scan(path, append_to(seen), [&] { return ++asked < 4; });
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code(), ErrorCode::cancelled);
  EXPECT_LT(seen.size(), 40 * kMiB);
}

TEST_P(Scan, AFileThatIsCutOrReplacedUnderItIsNamedAsChanged) {
  const auto scanner = open_scanner();
  const auto scan_while = [&](const std::function<void(const std::string&)>& change) {
    const std::string path = directory_.write("file", std::string(40 * kMiB, 'x'));
    bool changed = false;
    return scanner->scan(path,
                         [&](std::span<const std::byte>) -> Status {
                           if (!std::exchange(changed, true)) change(path);
                           return {};
                         },
                         {});
  };
  const auto cut = scan_while([](const std::string& path) { ASSERT_EQ(::truncate(path.c_str(), 1 << 20), 0); });
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(cut.error().code(), ErrorCode::changed) << cut.error().to_string();
  const auto replaced = scan_while([&](const std::string& path) {
    const std::string other = directory_.write("other", "x");
    ASSERT_EQ(::rename(other.c_str(), path.c_str()), 0);
  });
  ASSERT_FALSE(replaced.ok());
  EXPECT_EQ(replaced.error().code(), ErrorCode::changed) << replaced.error().to_string();
}

TEST_P(Scan, AMissingFileIsNamed) {
  const auto missing =
      open_scanner()->scan(directory_.file("none"), [](std::span<const std::byte>) -> Status { return {}; }, {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::not_found);
}

INSTANTIATE_TEST_SUITE_P(Backends, Scan,
                         ::testing::Combine(::testing::Values(io::BackendChoice::automatic, io::BackendChoice::threads),
                                            ::testing::Values(io::DirectPolicy::automatic, io::DirectPolicy::never)));

}  // namespace
}  // namespace infercluster::load
