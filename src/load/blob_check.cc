// SPDX-License-Identifier: Apache-2.0
#include "load/blob_check.h"

#include <algorithm>
#include <vector>

#include "checksum/sha256.h"
#include "os/file.h"

namespace infercluster::load {
namespace {

constexpr std::uint64_t kWindowBytes = 4 << 20;  // of what is copied back

Status add_header(checksum::Sha256& hash, const BlobCheck& check) {
  std::vector<std::byte> header(check.header.data_begin());
  IC_CHECK(os::read_exactly(check.source.buffered_fd(), header, 0, check.source.name()));
  hash.add(header);
  return {};
}

Status add_span(checksum::Sha256& hash, const memory::Span& span, std::vector<std::byte>& window, Target& target) {
  if (span.kind == memory::Kind::host) {
    hash.add({span.host(), span.bytes});
    return {};
  }
  window.resize(kWindowBytes);
  for (std::uint64_t at = 0; at < span.bytes; at += window.size()) {
    const std::uint64_t length = std::min<std::uint64_t>(window.size(), span.bytes - at);
    IC_CHECK(target.read(span.part(at, length), window.data()));
    hash.add(std::span(window).first(length));
  }
  return {};
}

}  // namespace

bool covers_whole_file(const Plan& plan, const Unit& unit, const safetensors::Header& header) {
  std::uint64_t bytes = 0;
  for (std::size_t i = unit.first_tensor; i < unit.last_tensor; ++i) bytes += plan.tensors[i].bytes;
  return bytes == header.file_size() - header.data_begin();  // tensors neither overlap nor leave holes
}

Status check_blob(const BlobCheck& check, Target& target) {
  checksum::Sha256 hash;
  IC_CHECK(add_header(hash, check));
  std::vector<std::byte> window;
  for (std::size_t i = check.unit.first_tensor; i < check.unit.last_tensor; ++i) {  // in the order of the file
    const PlannedTensor& tensor = check.plan.tensors[i];
    if (tensor.placement == Placement::empty) continue;
    const memory::Span span = tensor.span_in(check.block.span);
    IC_CHECK(add_span(hash, span, window, target));
  }
  const std::string found = hash.finish_hex();
  if (found == check.sha256) return {};
  return Error(ErrorCode::corrupt, "its SHA-256 is " + found + ", and its name in the cache says " + check.sha256)
      .with_path(check.source.name())
      .with_hint("The blob is damaged: remove this one file and fetch it again");
}

}  // namespace infercluster::load
