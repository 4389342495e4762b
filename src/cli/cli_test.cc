// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cli/completion.h"
#include "cli/load_options.h"
#include "cli/load_report.h"
#include "cli/output.h"
#include "cli/program.h"

namespace infercluster::cli {
namespace {

TEST(ProgressText, SaysHowMuchHowFastAndHowLong) {
  EXPECT_EQ(progress_text({0, 0}, 0), "0 B of 0 B");
  EXPECT_EQ(progress_text({0, 1 << 30}, 1), "0 B of 1.00 GiB, 0 %");
  EXPECT_EQ(progress_text({256 << 20, 1 << 30}, 0.5), "256.0 MiB of 1.00 GiB, 25 %, 512.0 MiB/s, 1.50 s left");
}

TEST(FormatSeconds, FitsTheirSize) {
  EXPECT_EQ(format_seconds(1.234), "1.23 s");
  EXPECT_EQ(format_seconds(61.4), "61 s");
  EXPECT_EQ(format_seconds(125), "2 min 5 s");
}

TEST(TableText, AlignsItsColumns) {
  Table table({"NAME", "SIZE"}, {1});
  table.add({"a", "10 B"});
  table.add({"ü", "1 B"});
  EXPECT_EQ(table.text(), "NAME  SIZE\na     10 B\nü      1 B\n");
}

TEST(ParseShard, TakesDimensionRankAndWorld) {
  const auto all = parse_shard("0:3:8");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->pattern, "*");
  EXPECT_EQ(all->shard->rank, 3U);
  EXPECT_EQ(all->shard->world, 8U);
  const auto some = parse_shard("a=b.*=1:0:2");
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(some->pattern, "a=b.*");
  EXPECT_EQ(some->shard->dimension, 1U);
  for (const char* const wrong : {"", "0", "0:1", "0:8:8", "0:1:2:3", "x:0:1", "-1:0:1", "0:0:1 ", "0:0:4294967296"}) {
    EXPECT_FALSE(parse_shard(wrong).ok()) << wrong;
  }
}

TEST(ParseSlice, TakesARangePerDimension) {
  const auto slice = parse_slice("w=0:10,5:7");
  ASSERT_TRUE(slice.ok());
  EXPECT_EQ(slice->pattern, "w");
  ASSERT_EQ(slice->ranges.size(), 2U);
  EXPECT_EQ(slice->ranges[1].begin, 5U);
  EXPECT_EQ(slice->ranges[1].end, 7U);
  for (const char* const wrong : {"", "w", "=0:1", "w=", "w=1", "w=2:1", "w=0:1,", "w=0:1:2"})
    EXPECT_FALSE(parse_slice(wrong).ok()) << wrong;
}

// Those within groups too.
std::vector<const CLI::App*> all_commands(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command);
    const std::vector<const CLI::App*> within = all_commands(*command);
    commands.insert(commands.end(), within.begin(), within.end());
  }
  return commands;
}

TEST(Completion, NamesEveryCommandAndOptionInEveryShell) {
  Action action;
  const auto app = make_app(action);
  for (const char* const shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(*app, shell);
    for (const CLI::App* const command : all_commands(*app)) {
      EXPECT_NE(script.find(command->get_name()), std::string::npos) << shell << " lacks " << command->get_name();
      for (const CLI::Option* const option : command->get_options()) {
        for (const std::string& name : option->get_lnames())
          EXPECT_NE(script.find(name), std::string::npos) << shell << " lacks --" << name;
      }
    }
    EXPECT_NE(script.find("auto uring threads"), std::string::npos) << shell;
  }
}

TEST(ReportJson, HasWhatItIsReadFor) {
  load::Report report;
  report.bytes = 1 << 30;
  report.seconds = 0.5;
  report.files.push_back({"a", 1, "direct", "cold", "unverified: no seal"});
  const auto json = to_json(report);
  for (const char* const key :
       {"bytes", "tensors", "seconds", "gib_per_s", "backend", "peak_host_bytes", "files", "waited", "moved_bytes"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["gib_per_s"], 2.0);
  EXPECT_EQ(json["files"][0]["mode"], "direct");
  for (const char* const cause : {"storage", "memory", "verify", "other"})
    EXPECT_TRUE(json["waited"].contains(cause)) << cause;
}

TEST(ErrorJson, HasTheParts) {
  const auto json =
      to_json(Error(ErrorCode::corrupt, "is cut").with_path("p").with_offset(7).with_tensor("t").with_hint("Fetch it"));
  EXPECT_EQ(json["code"], "corrupt");
  EXPECT_EQ(json["path"], "p");
  EXPECT_EQ(json["offset"], 7);
  EXPECT_EQ(json["tensor"], "t");
  EXPECT_EQ(json["hint"], "Fetch it");
}

}  // namespace
}  // namespace infercluster::cli
