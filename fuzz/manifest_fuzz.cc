// SPDX-License-Identifier: Apache-2.0
// Commit records and checkpoint indexes: whatever parses is written again to the same. Each input is tried as it is,
// and once more with its checksum put right, which no mutation would hit.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "manifest/commit.h"
#include "manifest/index.h"

namespace infercluster::manifest {
namespace {

template <typename Document, typename Build>
std::optional<std::string> check(const Result<Document>& document, const Build& build) {
  if (!document.ok()) {
    IC_ASSERT(document.error().code() == ErrorCode::corrupt || document.error().code() == ErrorCode::unsupported);
    IC_ASSERT(!document.error().message().empty());
    return document.error().message();
  }
  const Result<std::string> text = build(*document);
  IC_ASSERT(text.ok());
  return std::nullopt;
}

std::optional<std::string> check_commit(std::string_view text) {
  const Result<Commit> commit = parse_commit(text);
  if (commit.ok()) IC_ASSERT(*parse_commit(*build_commit(*commit)) == *commit);
  return check(commit, build_commit);
}

std::optional<std::string> check_index(std::string_view text) {
  const Result<Index> index = parse_index(text);
  if (index.ok()) IC_ASSERT(*parse_index(*build_index(*index)) == *index);
  return check(index, build_index);
}

// The input with the checksum that the parser asked for.
std::optional<std::string> put_right(std::string_view text, const std::optional<std::string>& complaint) {
  if (!complaint) return std::nullopt;
  constexpr std::string_view kFound = "its checksum is ";
  constexpr std::string_view kWanted = ", and its content gives ";
  const std::size_t found = complaint->find(kFound);
  const std::size_t wanted = complaint->rfind(kWanted);
  if (found == std::string::npos || wanted == std::string::npos) return std::nullopt;
  const std::string old = complaint->substr(found + kFound.size(), wanted - found - kFound.size());
  const std::size_t place = text.rfind(old);
  if (old.empty() || place == std::string_view::npos) return std::nullopt;
  return std::string(text).replace(place, old.size(), complaint->substr(wanted + kWanted.size()));
}

void check_all(std::string_view text) {
  if (const auto again = put_right(text, check_commit(text))) check_commit(*again);
  if (const auto again = put_right(text, check_index(text))) check_index(*again);
}

}  // namespace
}  // namespace infercluster::manifest

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Chars are what JSON is made of, and may alias anything.
  infercluster::manifest::check_all(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
