// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <set>
#include <string>

namespace infercluster {
namespace {

TEST(Error, ToStringHasThePartsThatAreSet) {
  EXPECT_EQ(Error(ErrorCode::io, "it failed").to_string(), "it failed");
  const Error full = Error(ErrorCode::corrupt, "found 1, expected 2")
                         .with_path("/a/b")
                         .with_tensor("w.0")
                         .with_offset(7)
                         .with_hint("Fetch it again")
                         .with_kind("Kind");
  EXPECT_EQ(full.to_string(), "/a/b: tensor \"w.0\": offset 7: found 1, expected 2. Fetch it again");
  EXPECT_EQ(full.code(), ErrorCode::corrupt);
  EXPECT_EQ(full.kind(), "Kind");
  EXPECT_EQ(full.system_errno(), 0);
  EXPECT_EQ(Error(ErrorCode::io, "x").with_offset(0).to_string(), "offset 0: x");
}

TEST(Error, TooManyOpenFilesNameTheLimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const Error error = Error::from_errno(EMFILE, "cannot open");
  EXPECT_NE(error.hint().find(std::to_string(limit.rlim_cur)), std::string::npos) << error.hint();
  EXPECT_NE(error.hint().find("ulimit -n"), std::string::npos) << error.hint();
  EXPECT_EQ(Error::from_errno(EIO, "cannot open").hint(), "");
}

TEST(Error, NamesCannotBreakTheLine) {
  const Error error =
      Error(ErrorCode::corrupt, "bad\r").with_path("a\nb").with_tensor("x\x1b[2J\xC3\xA9").with_hint("Do");
  EXPECT_EQ(error.to_string(), "a\\x0ab: tensor \"x\\x1b[2J\xC3\xA9\": bad\\x0d. Do");
}

TEST(Error, FromErrnoChoosesTheCodeByWhatCanBeDone) {
  const auto code = [](int number) { return Error::from_errno(number, "cannot open").code(); };
  EXPECT_EQ(code(ENOENT), ErrorCode::not_found);
  EXPECT_EQ(code(EACCES), ErrorCode::permission);
  EXPECT_EQ(code(EPERM), ErrorCode::permission);
  EXPECT_EQ(code(ENOMEM), ErrorCode::out_of_memory);
  EXPECT_EQ(code(EOPNOTSUPP), ErrorCode::unsupported);
  EXPECT_EQ(code(ESTALE), ErrorCode::changed);
  EXPECT_EQ(code(EINVAL), ErrorCode::invalid_argument);
  EXPECT_EQ(code(EIO), ErrorCode::io);
  EXPECT_EQ(code(ENOSPC), ErrorCode::io);
}

TEST(Error, FromErrnoSaysWhatWasDoneAndWhatCameOfIt) {
  const Error error = Error::from_errno(ENOENT, "cannot open").with_path("/x");
  EXPECT_EQ(error.to_string(), "/x: cannot open: No such file or directory");
  EXPECT_EQ(error.system_errno(), ENOENT);
}

TEST(ErrorCode, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    names.insert(name_of(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::internal) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
}

}  // namespace
}  // namespace infercluster
