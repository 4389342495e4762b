// SPDX-License-Identifier: Apache-2.0
// Any bytes as the JSON of a safetensors header. What must hold: no fault; every error has a kind; what strict rules
// accept the reference's accept alike; parsing in place gives the same table or error, whatever the padding holds; the
// file's size is checked to the byte; what parses is written again to the same table.
#include <algorithm>
#include <memory>

#include "base/assert.h"
#include "safetensors/header.h"

namespace infercluster::safetensors {
namespace {

constexpr std::uint64_t kAnySize = UINT64_MAX;  // with trailing bytes allowed

bool same(const Tensor& a, const Tensor& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.bytes() == b.bytes();
}

void check_error(const Error& error) {
  IC_ASSERT(!error.kind().empty());
  IC_ASSERT(error.code() == ErrorCode::corrupt);
  IC_ASSERT(!error.message().empty());
}

// In place, as a repository's files are parsed: what the padding holds must not count.
void check_padded(std::span<const std::byte> json, ParseOptions options, const Result<Header>& expected) {
  constexpr std::string_view kFillers("\0\"0}\xFF", 5);
  options.padded = true;
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(json.size() + kParsePadding);
  std::copy(json.begin(), json.end(), memory.get());
  const char filler = kFillers[json.size() % kFillers.size()];
  std::fill_n(memory.get() + json.size(), kParsePadding, static_cast<std::byte>(filler));
  const Result<Header> header = parse_header({memory.get(), json.size()}, kAnySize, options);
  IC_ASSERT(header.ok() == expected.ok());
  if (!expected.ok()) {
    IC_ASSERT(header.error().to_string() == expected.error().to_string());
    return;
  }
  const auto& tensors = expected->tensors();
  IC_ASSERT(std::equal(tensors.begin(), tensors.end(), header->tensors().begin(), header->tensors().end(), same));
  IC_ASSERT(header->metadata() == expected->metadata() && header->data_begin() == expected->data_begin());
}

// The table does not depend on what follows the data, but the verdict does.
void check_file_size(std::span<const std::byte> json, const Header& header, Compatibility compatibility) {
  const std::uint64_t data = header.tensors().empty() ? 0 : header.tensors().back().end;
  const std::uint64_t size = header.data_begin() + data;
  IC_ASSERT(parse_header(json, size, {.compatibility = compatibility}).ok());
  for (const std::uint64_t wrong : {size - 1, size + 1}) {
    if (wrong == 0) continue;  // size + 1 wrapped
    const Result<Header> refused = parse_header(json, wrong, {.compatibility = compatibility});
    IC_ASSERT(!refused.ok() && refused.error().kind() == "MetadataIncompleteBuffer");
  }
}

void check_rebuilt(const Header& header) {
  std::vector<Tensor> tensors(header.tensors().rbegin(), header.tensors().rend());
  const Result<std::string> built = build_header(tensors, header.metadata());
  IC_ASSERT(built.ok());
  IC_ASSERT(built->size() % 8 == 0);
  const auto bytes = std::as_bytes(std::span(built->data(), built->size()));
  const std::uint64_t data = tensors.empty() ? 0 : tensors.back().end;
  const std::uint64_t size = built->size() + data;
  if (size < data) return;  // no file can be that long
  const Result<std::uint64_t> length = parse_header_length(bytes.first(kPrefixBytes), size);
  IC_ASSERT(length.ok() && *length == built->size() - kPrefixBytes);
  const Result<Header> parsed = parse_header(bytes.subspan(kPrefixBytes), size);
  IC_ASSERT(parsed.ok());
  IC_ASSERT(parsed->tensors().size() == header.tensors().size());
  for (const Tensor& tensor : header.tensors()) {
    const Tensor* found = parsed->find(tensor.name);
    IC_ASSERT(found != nullptr && same(*found, tensor));
    IC_ASSERT(header.find(tensor.name) == &tensor);
  }
  IC_ASSERT(parsed->metadata().has_value() == header.metadata().has_value());
  if (!header.metadata()) return;
  Metadata sorted = *header.metadata();
  std::sort(sorted.begin(), sorted.end());
  IC_ASSERT(*parsed->metadata() == sorted);
}

void check(std::span<const std::byte> json) {
  constexpr ParseOptions kStrict{.allow_trailing_bytes = true};
  constexpr ParseOptions kLax{.compatibility = Compatibility::reference, .allow_trailing_bytes = true};
  const Result<Header> strict = parse_header(json, kAnySize, kStrict);
  const Result<Header> lax = parse_header(json, kAnySize, kLax);
  check_padded(json, kStrict, strict);
  check_padded(json, kLax, lax);
  if (strict.ok()) {
    IC_ASSERT(lax.ok() && lax->tensors().size() == strict->tensors().size());
    for (std::size_t i = 0; i < strict->tensors().size(); ++i) IC_ASSERT(same(strict->tensors()[i], lax->tensors()[i]));
    check_file_size(json, *strict, Compatibility::strict);
  } else {
    check_error(strict.error());
  }
  if (!lax.ok()) return check_error(lax.error());
  check_file_size(json, *lax, Compatibility::reference);
  check_rebuilt(*lax);
}

// The input as the first bytes of a file, and as the JSON of its header.
void check_file(std::span<const std::byte> bytes) {
  const std::size_t prefix_bytes = std::min<std::size_t>(bytes.size(), kPrefixBytes);
  const Result<std::uint64_t> length = parse_header_length(bytes.first(prefix_bytes), bytes.size());
  if (length.ok()) {
    IC_ASSERT(*length <= bytes.size() - kPrefixBytes && *length <= kHeaderLengthMax);
  } else {
    check_error(length.error());
  }
  check(bytes);
}

}  // namespace
}  // namespace infercluster::safetensors

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  infercluster::safetensors::check_file(std::as_bytes(std::span(data, size)));
  return 0;
}
