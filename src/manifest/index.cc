// SPDX-License-Identifier: Apache-2.0
#include "manifest/index.h"

#include <unordered_set>

#include "manifest/commit.h"
#include "manifest/json_internal.h"
#include "safetensors/header.h"

namespace infercluster::manifest {
namespace {

constexpr Format kFormat{"infercluster.checkpoint.index", "checkpoint index"};
constexpr std::size_t kDimensionsMax = 64;

std::uint64_t blocks_of(std::uint64_t bytes) {
  return bytes / kBlockBytes + (bytes % kBlockBytes != 0 ? 1 : 0);
}

Result<std::vector<std::uint64_t>> numbers_of(const Json& object, const char* key) {
  IC_TRY(const Json* list, array_of(object, key, kFormat));
  if (list->size() > kDimensionsMax) return damaged(kFormat, "a tensor has more than 64 dimensions");
  std::vector<std::uint64_t> numbers;
  for (const Json& value : *list) {
    if (!value.is_number_unsigned()) return damaged(kFormat, "\"" + std::string(key) + "\" holds no whole number");
    numbers.push_back(value.get<std::uint64_t>());
  }
  return numbers;
}

Result<Segment> parse_segment(const Json& entry) {
  Segment segment;
  IC_TRY(segment.name, text_of(entry, "name", kFormat));
  IC_TRY(segment.bytes, number_of(entry, "bytes", kFormat));
  IC_TRY(const std::string crcs, text_of(entry, "crc32c", kFormat));
  if (crcs.size() % 8 != 0) return damaged(kFormat, "the checksums of " + segment.name + " are cut");
  for (std::size_t i = 0; i < crcs.size(); i += 8) {
    std::uint32_t crc = 0;
    if (!parse_hex(std::string_view(crcs).substr(i, 8), crc))
      return damaged(kFormat, "the checksums of " + segment.name + " are not hexadecimal");
    segment.block_crcs.push_back(crc);
  }
  return segment;
}

Result<Chunk> parse_chunk(const Json& entry) {
  Chunk chunk;
  IC_TRY(chunk.tensor, text_of(entry, "tensor", kFormat));
  IC_TRY(const std::string dtype, text_of(entry, "dtype", kFormat));
  const auto known = safetensors::parse_dtype(dtype);
  if (!known) return damaged(kFormat, "unknown dtype \"" + dtype + "\"").with_tensor(chunk.tensor);
  chunk.dtype = *known;
  IC_TRY(chunk.shape, numbers_of(entry, "shape"));
  IC_TRY(chunk.box.offsets, numbers_of(entry, "offsets"));
  IC_TRY(chunk.box.lengths, numbers_of(entry, "lengths"));
  IC_TRY(chunk.segment, number_of(entry, "segment", kFormat));
  IC_TRY(chunk.begin, number_of(entry, "begin", kFormat));
  if (entry.contains("generation")) {
    IC_TRY(chunk.generation, number_of(entry, "generation", kFormat));
  }
  const Result<std::uint64_t> bytes = safetensors::tensor_bytes(chunk.dtype, chunk.box.lengths);
  if (!bytes.ok()) return damaged(kFormat, bytes.error().message()).with_tensor(chunk.tensor);
  chunk.bytes = *bytes;
  return chunk;
}

Status check_chunk(const Index& index, const Chunk& chunk) {
  const auto odd = [&chunk](const char* what) { return damaged(kFormat, what).with_tensor(chunk.tensor); };
  const std::size_t dimensions = chunk.shape.size();
  if (dimensions > kDimensionsMax || chunk.box.offsets.size() != dimensions || chunk.box.lengths.size() != dimensions)
    return odd("a chunk has another number of dimensions than its tensor");
  if (const auto whole = safetensors::tensor_bytes(chunk.dtype, chunk.shape); !whole.ok())
    return odd("the tensor would have more than 2^64 bytes, or no whole number of them");
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (chunk.box.offsets[d] > chunk.shape[d] || chunk.box.lengths[d] > chunk.shape[d] - chunk.box.offsets[d])
      return odd("a chunk reaches out of its tensor");
  }
  const auto bytes = safetensors::tensor_bytes(chunk.dtype, chunk.box.lengths);
  if (!bytes.ok() || *bytes != chunk.bytes) return odd("a chunk's size does not follow from its box");
  if (chunk.segment >= index.segments.size()) return odd("a chunk lies in a segment that is not named");
  const std::uint64_t size = index.segments[chunk.segment].bytes;
  if (chunk.begin > size || chunk.bytes > size - chunk.begin) return odd("a chunk reaches out of its segment");
  return {};
}

Status check(const Index& index) {
  if (!is_hex(index.save_id, 16)) return damaged(kFormat, "\"save_id\" is not 16 hexadecimal digits");
  std::unordered_set<std::string_view> names;
  for (const Segment& segment : index.segments) {
    if (!is_plain_name(segment.name)) return damaged(kFormat, "the name of a segment is not a plain file name");
    if (!names.insert(segment.name).second) return damaged(kFormat, "segment " + segment.name + " is named twice");
    if (segment.block_crcs.size() != blocks_of(segment.bytes))
      return damaged(kFormat, segment.name + " has " + std::to_string(segment.bytes) + " bytes and " +
                                  std::to_string(segment.block_crcs.size()) + " checksums");
  }
  for (const Chunk& chunk : index.chunks) IC_CHECK(check_chunk(index, chunk));
  std::unordered_set<std::string_view> keys;
  for (const auto& [key, value] : index.metadata) {
    if (!keys.insert(key).second) return damaged(kFormat, "a key of the metadata is there twice");
  }
  return {};
}

Json json_of(const Segment& segment) {
  Json entry = Json::object();
  entry["name"] = segment.name;
  entry["bytes"] = segment.bytes;
  std::string crcs;
  crcs.reserve(segment.block_crcs.size() * 8);
  for (const std::uint32_t crc : segment.block_crcs) crcs += to_hex(crc);
  entry["crc32c"] = std::move(crcs);
  return entry;
}

Json json_of(const Chunk& chunk) {
  Json entry = Json::object();
  entry["tensor"] = chunk.tensor;
  entry["dtype"] = safetensors::name_of(chunk.dtype);
  entry["shape"] = chunk.shape;
  entry["offsets"] = chunk.box.offsets;
  entry["lengths"] = chunk.box.lengths;
  entry["segment"] = chunk.segment;
  entry["begin"] = chunk.begin;
  if (chunk.generation) entry["generation"] = *chunk.generation;
  return entry;
}

}  // namespace

Box whole_box(const std::vector<std::uint64_t>& shape) {
  return {std::vector<std::uint64_t>(shape.size(), 0), shape};
}

Result<Index> parse_index(std::string_view text) {
  if (text.size() > kIndexBytesMax) return damaged(kFormat, "it has " + std::to_string(text.size()) + " bytes");
  IC_TRY(const Json body, open_document(text, kFormat));
  Index index;
  IC_TRY(index.step, number_of(body, "step", kFormat));
  IC_TRY(index.epoch, number_of(body, "epoch", kFormat));
  IC_TRY(index.save_id, text_of(body, "save_id", kFormat));
  IC_TRY(index.node, number_of(body, "node", kFormat));
  IC_TRY(const Json* segments, array_of(body, "segments", kFormat));
  for (const Json& entry : *segments) {
    IC_TRY(Segment segment, parse_segment(entry));
    index.segments.push_back(std::move(segment));
  }
  IC_TRY(const Json* chunks, array_of(body, "chunks", kFormat));
  for (const Json& entry : *chunks) {
    IC_TRY(Chunk chunk, parse_chunk(entry));
    index.chunks.push_back(std::move(chunk));
  }
  IC_TRY(const Json* metadata, array_of(body, "metadata", kFormat));
  for (const Json& entry : *metadata) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string())
      return damaged(kFormat, "\"metadata\" holds no pair of texts");
    index.metadata.emplace_back(entry[0].get<std::string>(), entry[1].get<std::string>());
  }
  IC_CHECK(check(index));
  return index;
}

Result<std::string> build_index(const Index& index) {
  IC_CHECK(check(index));
  Json body = begin_document(kFormat);
  body["step"] = index.step;
  body["epoch"] = index.epoch;
  body["save_id"] = index.save_id;
  body["node"] = index.node;
  body["segments"] = Json::array();
  for (const Segment& segment : index.segments) body["segments"].push_back(json_of(segment));
  Json chunks = Json::array();
  for (const Chunk& chunk : index.chunks) chunks.push_back(json_of(chunk));
  body["chunks"] = std::move(chunks);
  Json metadata = Json::array();
  for (const auto& [key, value] : index.metadata) metadata.push_back(Json::array({key, value}));
  body["metadata"] = std::move(metadata);
  IC_TRY(std::string text, close_document(std::move(body), kFormat));
  if (text.size() > kIndexBytesMax) {
    return Error(ErrorCode::too_large, "the checkpoint index would have " + std::to_string(text.size()) + " bytes");
  }
  return text;
}

}  // namespace infercluster::manifest
